#pragma once
// The entry to the cuda backend: exactly one of its implementation files is built in.

#include <memory>
#include <string>

#include "device/device.h"

namespace fp8train {

/// Makes the device of GPU `index` of those that this process sees. Throws DeviceError, saying why,
/// when it cannot be used, or when this build has no CUDA backend.
std::unique_ptr<Device> make_cuda_device(int index = 0);

/// Returns the number of GPUs that this process sees, usable or not.
int visible_gpus();

/// Returns the cudaStream_t of a cuda stream, for libraries that work on streams. Only in builds
/// with the cuda backend.
void* native_queue(const Stream& stream);
/// Makes the stream's GPU that of the calling thread, which threads other than the one that made
/// the device must do before they use it: otherwise they would start the first GPU too. Throws
/// DeviceError.
void select_gpu(const Stream& stream);

/// Returns why GPU `index` of those that this process sees cannot be used, for `device: auto`, or
/// nothing if it can.
std::string why_cuda_is_unusable(int index = 0);

/// Returns the facts that layers need about a GPU. Every build has them: `check` plans for GPUs
/// that this machine lacks. `capability`: 89, 90, 100, ... `memory`: in bytes.
DeviceTraits cuda_traits(int capability, size_t memory = 0);

}  // namespace fp8train
