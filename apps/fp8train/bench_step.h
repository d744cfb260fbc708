#pragma once
// fp8train bench step: a whole training step on random tokens, against the rate of GEMMs measured
// in the same run. On several ranks (mpirun, srun) each has a batch of its own.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "device/device.h"
#include "model/model_config.h"
#include "timeline.h"
#include "train/engine.h"

namespace fp8train {

struct StepBench {
  std::string preset = "nanogpt-laptop", plan = "bf16";
  std::vector<std::string> sets;  ///< "precision.key=v" and "fp8.key=v": changes to the plan
  int64_t micro_batch_size = 12, seq_length = 64, accumulation = 1;
  int64_t vocabulary = 0;  ///< 0: the preset's, or 65
  int64_t layers = 0;      ///< 0: the preset's
  int64_t zero_stage = 0, bucket_mb = 25;
  std::string timeline;  ///< where to write one; empty: nowhere
  /// Weights are a few drawn values, repeated: billions take minutes to draw as training does.
  bool quick_weights = false;
};

/// The preset's model. Throws ConfigError for an unknown one.
ModelConfig model_of(const StepBench& bench);

struct StepRates {
  double seconds;        ///< of a step
  double tokens, flops;  ///< of a step, of one rank
  Traffic sent;          ///< of a step, of one rank
  double ceiling;        ///< FLOP/s of the best GEMM in the type of activations
  const char* gemm_engine;
  std::vector<std::pair<std::string, double>> time_shares;  ///< by operation
  StepTimes times;                                          ///< of this rank
};

/// Of an engine that runs it. Throws ConfigError for an unknown preset or plan, and for a change
/// that the plan does not take.
EngineSettings step_settings(const StepBench& bench);

/// Collective. Throws ConfigError for an unknown preset or row.
StepRates step_rates(Device& device, Communicator& comm, const StepBench& bench, double seconds);

}  // namespace fp8train
