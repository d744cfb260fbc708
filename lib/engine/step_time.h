#pragma once
// The time of an optimizer step on GPUs that need not be here: the operations of each pipeline
// stage, what crosses between ranks, and the waits of stages for each other.

#include <cstdint>
#include <vector>

#include "comm/topology.h"
#include "device/gpu_kinds.h"
#include "engine/dry_run.h"

namespace fp8train {

/// Seconds of one optimizer step. With several stages: of the one that works longest.
struct StepTime {
  double gemms = 0, attention = 0, others = 0;
  double wire = 0;                  ///< if nothing else were done
  double exposed = 0;               ///< of `wire`, the seconds in which nothing is computed
  double idle = 0;                  ///< that it waits for other stages
  int stage = 0;                    ///< its index
  std::vector<double> idle_shares;  ///< of the step, of each stage

  double work() const { return gemms + attention + others + exposed; }
  double total() const { return work() + idle; }
};

/// `steps` have calls: they are logged steps, of `ranks`, with the settings' schedule or another
/// one, whose stages have the same passes. A stage sends the result of a pass before it begins the
/// next one.
StepTime step_time(const EngineSettings& settings, const StageRuns& steps, const Topology& ranks,
                   const GpuKind& gpu);

}  // namespace fp8train
