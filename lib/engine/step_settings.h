#pragma once
// A user's settings of one training step, from several sections of YAML. The settings of a run and
// those of the engine contain this struct, so that a key of a step is one member and one field.

#include <cstdint>

#include "model/decoder_settings.h"

namespace fp8train {

/// The batch of a step and the way in which it is computed.
struct StepSettings {
  int64_t seq_length = 1024;
  int64_t micro_batch_size = 8;  ///< sequences
  int64_t gradient_accumulation_steps = 1;
  uint64_t seed = 1;  ///< seed of a run's draws, and in the engine of stochastic rounding
  DecoderSettings decoder;
  bool deterministic = false;  ///< attention's backward too repeats bitwise on a GPU; all else does
  bool cuda_graphs = true;     ///< steps are recorded and replayed if the device can

  /// Returns the tokens of a micro-batch.
  int64_t micro_batch_tokens() const { return micro_batch_size * seq_length; }
  /// Returns the tokens of a step on one rank.
  int64_t tokens() const { return micro_batch_tokens() * gradient_accumulation_steps; }

  bool operator==(const StepSettings&) const = default;
};

}  // namespace fp8train
