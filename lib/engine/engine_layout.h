#pragma once
// The part of each layer that a rank of an engine has, and whether the axes go with the model and
// the batch. Both functions throw ConfigError, with the key and the nearest value that works.

#include "engine/engine.h"
#include "model/tensor_share.h"
#include "nn/moe_shape.h"

namespace fp8train {

TensorShare tensor_share(const EngineSettings& settings, const Mesh& mesh);
/// `repeats`: each rank of Group::state has all of the parameters that it shares.
ExpertShare expert_share(const EngineSettings& settings, const Mesh& mesh, bool repeats);

}  // namespace fp8train
