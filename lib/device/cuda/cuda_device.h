#pragma once
// The entry to the cuda backend: exactly one of its implementation files is built in.

#include <memory>
#include <string>

#include "device/device.h"

namespace fp8train {

/// The GPU `index` of those that this process sees. Throws DeviceError, saying why, when it cannot
/// be used or this build has no CUDA backend.
std::unique_ptr<Device> make_cuda_device(int index = 0);

/// GPUs that this process sees, usable or not.
int visible_gpus();

/// For libraries that work on streams; only where the cuda backend is built in. The cudaStream_t of
/// a cuda stream.
void* native_queue(const Stream& stream);
/// Makes the stream's GPU that of the calling thread, as other threads than the one that made the
/// device must before they use it: else they would start the first GPU too.
void select_gpu(const Stream& stream);

/// Empty when a GPU can be used; otherwise the reason, for `device: auto`.
std::string why_cuda_is_unusable();

/// What nn must know of the cuda device, in every build: `check` plans for GPUs that are not here.
/// `capability`: 89, 90, 100, ... `memory`: in bytes.
DeviceTraits cuda_traits(int capability, size_t memory = 0);

}  // namespace fp8train
