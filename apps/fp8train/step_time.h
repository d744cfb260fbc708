#pragma once
// How long an optimizer step takes on a GPU that need not be here.

#include "device/gpu_kinds.h"
#include "engine/dry_run.h"

namespace fp8train {

/// Seconds of one optimizer step.
struct StepTime {
  double gemms = 0, attention = 0, others = 0;
  double wire = 0;     ///< if nothing else were done
  double exposed = 0;  ///< of `wire`, the seconds that backward does not hide

  double total() const { return gemms + attention + others + exposed; }
};

/// `step` has calls: it is a logged_step().
StepTime step_time(const EngineSettings& settings, const DryRunStep& step, const GpuKind& gpu);

}  // namespace fp8train
