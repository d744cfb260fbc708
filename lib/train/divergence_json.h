#pragma once
// The part of a checkpoint's state.json about divergence: rollbacks and the window of losses.

#include <nlohmann/json_fwd.hpp>

#include "train/training_state.h"

namespace fp8train {

/// Adds is_scheduled, rollbacks and, where spikes are looked for, recent_losses, high_steps and
/// first_high.
void add_divergence(nlohmann::ordered_json& json, const TrainingState& state);

/// Reads them into `state`; what an older version did not write is left as it is. Throws
/// nlohmann::json::exception for other types, CheckpointError for values that no run has saved,
/// beginning with `where`.
void read_divergence(const nlohmann::json& json, const std::string& where, TrainingState& state);

}  // namespace fp8train
