#pragma once
// The table of plans: plans.cpp fills it, plan.cpp and selection.cpp search it.

#include <functional>
#include <optional>
#include <vector>

#include "precision/plan.h"

namespace fp8train {

/// A plan, the fp8.backend, fp8.recipe (fp8.opt_level if recipes are levels) and fp8.use_te that
/// select it under mixed_precision: fp8 (empty: not selected that way), and who published it.
/// `mixed_precision`: the value of that key that selects it by itself.
struct PlanEntry {
  const char* name;
  const char* backend;
  const char* recipe;
  bool use_te;
  std::function<PrecisionPlan()> make;
  const char* source;
  std::optional<MixedPrecision> mixed_precision = {};
  bool needs_roles = false;  ///< it means something only with roles of the request
  /// Why it is recommended for a GPU that multiplies it in FP8. Of several such plans the last one
  /// is recommended.
  const char* advice = "";
};

/// Returns the plans in the order of the table.
const std::vector<PlanEntry>& plan_entries();

/// The backend whose recipes are levels, and the level that nobody has to name.
struct LevelBackend {
  const char* name;
  const char* usual;
};
/// Returns the one backend whose recipes are levels.
const LevelBackend& level_backend();

}  // namespace fp8train
