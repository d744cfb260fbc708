#pragma once
// The plans of the table that tests of layers run in.

#include <string>
#include <vector>

#include "precision/plan.h"

namespace fp8train::test {

/// The plans whose fprop reads FP8 codes.
inline std::vector<std::string> fp8_plans() {
  std::vector<std::string> names = plan_names();
  std::erase_if(names, [](const auto& name) { return !is_fp8(plan_named(name).fprop.a.dtype); });
  return names;
}

/// Of these, the plans with current scales only.
inline std::vector<std::string> fp8_plans_with_current_scales() {
  std::vector<std::string> names = fp8_plans();
  std::erase_if(names, [](const auto& name) {
    const auto has_others = [](const GemmPlan& gemm) {
      return (gemm.a.is_scaled() && gemm.a.policy != ScalePolicy::current) ||
             (gemm.b.is_scaled() && gemm.b.policy != ScalePolicy::current);
    };
    const PrecisionPlan plan = plan_named(name);
    return has_others(plan.fprop) || has_others(plan.dgrad) || has_others(plan.wgrad);
  });
  return names;
}

}  // namespace fp8train::test
