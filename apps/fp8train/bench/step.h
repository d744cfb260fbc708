#pragma once
// The step that fp8train bench step measures, or models for a GPU that is not here.

#include <cstdint>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "model/model_config.h"

namespace fp8train {

struct StepBench {
  std::string preset = "nanogpt-laptop";
  std::string plan = "bf16";      ///< of the step; of `bench step` also several, with commas
  std::vector<std::string> sets;  ///< "precision.key=v" and "fp8.key=v": changes to the plan
  StepSettings settings = {.seq_length = 64, .micro_batch_size = 12};
  int64_t vocabulary = 0;  ///< 0: the preset's, or 65
  int64_t layers = 0;      ///< 0: the preset's
  int64_t zero_stage = 0;
  int64_t bucket_mb = 0;  ///< 0: default_bucket_bytes()
  std::string timeline;   ///< where to write one; empty: nowhere
  /// Weights are a few drawn values, repeated: billions take minutes to draw as training does.
  bool quick_weights = false;
};

/// The preset's model. Throws ConfigError for an unknown one.
ModelConfig model_of(const StepBench& bench);

/// Returns the settings of an engine that runs the step. Throws ConfigError for an unknown preset
/// or plan, and for a change that the plan does not take.
EngineSettings engine_settings_of(const StepBench& bench);

}  // namespace fp8train
