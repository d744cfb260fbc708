#pragma once
// The door to the cuda backend: exactly one of the files behind it is built in.

#include <memory>
#include <string>

#include "device/device.h"

namespace fp8train {

/// Throws DeviceError, saying why, when there is no usable GPU or this build has no CUDA backend.
std::unique_ptr<Device> make_cuda_device();

/// Empty when a GPU can be used; otherwise the reason, for `device: auto`.
std::string why_cuda_is_unusable();

}  // namespace fp8train
