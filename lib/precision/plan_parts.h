#pragma once
// Plans of parts of a run: of single layers (precision.layers) and of stages in time
// (precision.schedule). Storage and wires follow the run's plan in all of them.

#include "precision/plan.h"

namespace fp8train {

/// Sets the plans of single layers, as the table has them: the options that tune a plan are for the
/// run's. Throws ConfigError, which names the pattern if one is at fault.
void apply_layers(const PlanRequest& request, PrecisionPlan& plan);

/// Sets the stages: those of the run's plan, of other scaled plans and of plain GEMMs. Throws
/// ConfigError.
void apply_schedule(const PlanRequest& request, PrecisionPlan& plan);

/// Returns a scaled plan that a stage of a run of `run` names, with the request's roles of what is
/// stored, sent and saved for backward; its operands are the plan's own. Throws ConfigError if it
/// stores or sends in other formats.
PrecisionPlan stage_plan(const PlanRequest& request, const PrecisionPlan& run,
                         const std::string& name);

/// Applies the key fp8.format.
void set_fp8_format(Fp8Format format, PrecisionPlan& plan);

}  // namespace fp8train
