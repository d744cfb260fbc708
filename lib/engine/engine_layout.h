#pragma once
// The part of each layer that a rank of an engine has, and whether the axes go with the model and
// the batch. The first two functions throw ConfigError, with the key and the nearest value that
// works.

#include "engine/engine.h"
#include "model/tensor_share.h"
#include "nn/moe_shape.h"

namespace fp8train {

TensorShare tensor_share(const EngineSettings& settings, const Mesh& mesh);
/// `repeats`: each rank of Group::state has all of the parameters that it shares.
ExpertShare expert_share(const EngineSettings& settings, const Mesh& mesh, bool repeats);

/// Throws DeviceError where only a GPU's own kernels have what the batches of a plan need.
void check_documents(const EngineSettings& settings, const DeviceTraits& traits);

}  // namespace fp8train
