#pragma once
// The table of plans as its two readers see it: plans.cpp fills it, selection.cpp searches it.

#include <functional>
#include <vector>

#include "precision/plan.h"

namespace fp8train {

/// A plan, the fp8.backend, fp8.recipe (fp8.opt_level where recipes are levels) and fp8.use_te that
/// select it under mixed_precision: fp8 (empty: not selected that way), and who published it.
struct PlanEntry {
  const char* name;
  const char* backend;
  const char* recipe;
  bool use_te;
  std::function<PrecisionPlan()> make;
  const char* source;
};

/// Returns the plans in the order of the table.
const std::vector<PlanEntry>& plan_entries();

/// The backend whose recipes are levels, and the level that nobody has to name.
struct LevelBackend {
  const char* name;
  const char* usual;
};
const LevelBackend& level_backend();

}  // namespace fp8train
