#pragma once
// Points in the streams of the cuda device.

#include <memory>

#include "device/device.h"

namespace fp8train {

/// Makes an event on the calling thread's GPU. Throws DeviceError.
std::unique_ptr<StreamEvent> make_cuda_event();

}  // namespace fp8train
