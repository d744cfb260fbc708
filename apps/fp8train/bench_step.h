#pragma once
// fp8train bench step: a whole training step on random tokens, against the rate of GEMMs measured
// in the same run.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "device/device.h"

namespace fp8train {

struct StepBench {
  std::string preset = "nanogpt-laptop", plan = "bf16";
  int64_t micro_batch_size = 12, seq_length = 64, accumulation = 1;
  int64_t vocabulary = 65;  ///< for presets without one
  int64_t layers = 0;       ///< 0: the preset's
};

struct StepRates {
  double seconds;        ///< of a step
  double tokens, flops;  ///< of a step
  double ceiling;        ///< FLOP/s of the best GEMM in the type of activations
  const char* gemm_engine;
  std::vector<std::pair<std::string, double>> time_shares;  ///< by operation
};

/// Throws ConfigError for an unknown preset or row.
StepRates step_rates(Device& device, const StepBench& bench, double seconds);

}  // namespace fp8train
