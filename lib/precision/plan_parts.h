#pragma once
// Plans of parts of a run: of single layers (precision.layers) and of stages in time
// (precision.schedule). What is stored and what crosses a wire is the run's plan's in all of them.

#include "precision/plan.h"

namespace fp8train {

/// The plans of single layers, as the table has them: the options that tune a plan are for the
/// run's. Throws ConfigError naming the pattern.
void apply_layers(const PlanRequest& request, PrecisionPlan& plan);

/// Stages of the run's plan and of plain GEMMs. Throws ConfigError.
void apply_schedule(const PlanRequest& request, PrecisionPlan& plan);

}  // namespace fp8train
