#pragma once
// The door to the cuda backend: exactly one of the files behind it is built in.

#include <memory>
#include <string>

#include "device/device.h"

namespace fp8train {

/// The first GPU that can be used. Throws DeviceError, saying why, when there is none or this build
/// has no CUDA backend.
std::unique_ptr<Device> make_cuda_device();

/// Empty when a GPU can be used; otherwise the reason, for `device: auto`.
std::string why_cuda_is_unusable();

/// What nn must know of the cuda device, in every build: `check` plans for GPUs that are not here.
/// `capability`: 89, 90, 100, ...
DeviceTraits cuda_traits(int capability);

}  // namespace fp8train
