#pragma once
// Replaces single roles of a plan by those of a request. Throws ConfigError naming the key.

#include <initializer_list>

#include "precision/plan.h"

namespace fp8train {

/// Applies the formats that a user gives for roles of these kinds.
void apply_roles(const PlanRequest& request, std::initializer_list<RoleKind> kinds,
                 PrecisionPlan& plan);

}  // namespace fp8train
