#pragma once
// The weights and the tokens of a measured step: drawn so that a model of billions of parameters
// starts in seconds.

#include "device/device.h"
#include "engine/engine.h"
#include "nn/parameter.h"

namespace fp8train {

/// Sets initial values of the usual deviation that take no time to draw. Throws DeviceError.
void set_quick_weights(Device& device, ParameterStore& store);

/// Returns random tokens and targets of one micro-batch of this rank.
Batch random_batch(const EngineSettings& settings, int rank);

}  // namespace fp8train
