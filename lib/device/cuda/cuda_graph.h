#pragma once
// Recordings of the cuda device: the operations that a stream captured, as a CUDA graph.

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>

#include "base/not_copied.h"
#include "device/cuda/cuda_context.h"
#include "device/device.h"

namespace fp8train {

/// A graph that its stream runs again.
class CudaGraph final : public Recording, NotCopied {
 public:
  explicit CudaGraph(cudaStream_t stream) : stream_(stream) {}
  ~CudaGraph() override {
    if (executable_ != nullptr) {
      cudaGraphExecDestroy(executable_);
    }
  }

  void instantiate(cudaGraph_t graph) {
    check_cuda(cudaGraphInstantiate(&executable_, graph, 0), "preparing a CUDA graph");
  }
  void replay() override {
    check_cuda(cudaGraphLaunch(executable_, stream_), "starting a CUDA graph");
  }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t executable_ = nullptr;
};

/// A capture in progress, which ends with the scope.
class Capture : NotCopied {
 public:
  explicit Capture(cudaStream_t stream) : stream_(stream) {
    check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
               "starting to record a step");
  }
  ~Capture() {
    if (running_) {
      cudaStreamEndCapture(stream_, &graph_);
    }
    if (graph_ != nullptr) {
      cudaGraphDestroy(graph_);
    }
  }

  cudaGraph_t finish() {
    running_ = false;
    check_cuda(cudaStreamEndCapture(stream_, &graph_), "recording a step");
    return graph_;
  }

 private:
  cudaStream_t stream_;
  cudaGraph_t graph_ = nullptr;
  bool running_ = true;
};

/// Does Device::record on `stream`, which outlives the recording. When `work` throws, nothing stays
/// captured and the exception continues.
inline std::unique_ptr<Recording> capture_graph(cudaStream_t stream,
                                                const std::function<void()>& work) {
  auto recording = std::make_unique<CudaGraph>(stream);
  Capture capture(stream);
  work();
  recording->instantiate(capture.finish());
  return recording;
}

}  // namespace fp8train
