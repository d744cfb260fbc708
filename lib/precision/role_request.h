#pragma once
// Replaces single roles of a plan by those of a request. Throws ConfigError naming the key.

#include "precision/plan.h"

namespace fp8train {

/// Applies the formats that a user gives for the six operands of GEMMs.
void apply_gemm_roles(const PlanRequest& request, PrecisionPlan& plan);

/// Applies the formats that a user gives for the weight and its master.
void apply_weight_roles(const PlanRequest& request, PrecisionPlan& plan);

/// Applies the formats that a user gives for all other roles.
void apply_stored_roles(const PlanRequest& request, PrecisionPlan& plan);

}  // namespace fp8train
