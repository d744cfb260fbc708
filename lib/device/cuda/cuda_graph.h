#pragma once
// Recordings of the cuda device: the operations that a stream captured, as a CUDA graph.

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>

#include "device/device.h"

namespace fp8train {

/// Does Device::record on `stream`, which outlives the recording. When `work` throws, nothing stays
/// captured and the exception continues.
std::unique_ptr<Recording> capture_graph(cudaStream_t stream, const std::function<void()>& work);

}  // namespace fp8train
