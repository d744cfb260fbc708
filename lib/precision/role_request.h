#pragma once
// Replaces single roles of a plan by those of a request. Throws ConfigError naming the key.

#include "precision/plan.h"

namespace fp8train {

/// The six operands.
void apply_gemm_roles(const PlanRequest& request, PrecisionPlan& plan);

/// The weight and its master.
void apply_weight_roles(const PlanRequest& request, PrecisionPlan& plan);

/// All others.
void apply_stored_roles(const PlanRequest& request, PrecisionPlan& plan);

}  // namespace fp8train
