#pragma once
// The adapters of a run's model, and how it stores the frozen weights, from model.lora and the
// folders that it names.

#include "config/settings.h"

namespace fp8train {

/// Returns the model with ModelConfig::lora. `model`: completed. Throws ConfigError where keys
/// contradict each other or targets match nothing, CheckpointError for folders that cannot be read.
ModelConfig with_adapters(const Settings& settings, ModelConfig model);

}  // namespace fp8train
