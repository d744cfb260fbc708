#pragma once
// The rows of the experts of a dropless mixture: each has as many as it has tokens, and rows
// without one up to a multiple. What all have together is bounded, whatever the router chooses.

#include <algorithm>
#include <cstdint>

#include "base/math.h"

namespace fp8train {

/// The rows of experts for `tokens`, of which each is sent to `per_token` different experts.
struct DroplessRows {
  int64_t experts, per_token, tokens;
  int64_t multiple;  ///< no expert has fewer rows

  int64_t of_expert(int64_t own_tokens) const {
    return std::max(round_up(own_tokens, multiple), multiple);
  }
  /// Returns what no expert has more of.
  int64_t largest() const { return of_expert(tokens); }
  /// Returns what each of the others has in a plan where one has the most, so that all together
  /// have no less than for any choices: less than `multiple` without a token in each.
  int64_t other() const {
    const int64_t bound = std::min(per_token * tokens + experts * multiple, experts * largest());
    return experts == 1 ? 0 : round_up(ceil_div(bound - largest(), experts - 1), multiple);
  }
  /// Returns the rows of all experts in this plan.
  int64_t bound() const { return largest() + (experts - 1) * other(); }
};

}  // namespace fp8train
