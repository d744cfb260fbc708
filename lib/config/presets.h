#pragma once
// Named model shapes with the sequence length they are meant to be trained at.

#include <string>
#include <vector>

#include "config/settings.h"

namespace fp8train {

/// A model that a user can choose by name.
struct Preset {
  std::string name;
  std::string doc;  ///< one line
  ModelConfig config;
  int64_t seq_length = 0;     ///< becomes the default of data.seq_length
  double balance_loss = 0.0;  ///< becomes the default of moe.balance_loss
};

/// Returns all presets, small to large.
const std::vector<Preset>& presets();

/// Returns the preset with this name, or null.
const Preset* find_preset(const std::string& name);

/// Sets the keys that the preset decides: model.preset, model.config, data.seq_length and
/// moe.balance_loss.
void apply_preset(const Preset& preset, Settings& settings);

}  // namespace fp8train
