#include "train/skip_guard.h"

#include <fmt/format.h>

#include "base/log.h"
#include "train/divergence.h"

namespace fp8train {

bool SkipGuard::wants_first_tensor(const StepReport& report, int64_t steps) const {
  const bool begins_or_ends =
      report.skipped_in_a_row <= steps || report.skipped_in_a_row >= most_in_a_row_;
  return report.skipped_in_a_row > 0 && begins_or_ends && !searching(report);
}

std::string SkipGuard::first_tensor() const {
  return first_tensor_.empty()
             ? std::string()
             : fmt::format("; the first tensor that is not finite: {}", first_tensor_);
}

void SkipGuard::check(const StepReport& report, int64_t step, int64_t steps,
                      const std::function<std::string()>& saved) {
  const int64_t skips = report.skipped_steps - seen_;
  seen_ = report.skipped_steps;
  if (skips == 0 || searching(report)) {
    return;
  }
  const std::string what = fmt::format(
      "{} of the {} steps up to step {} had a gradient that was not finite", skips, steps, step);
  if (non_finite_ == OnNonFinite::stop) {
    throw DivergenceError(
        fmt::format("{} (training.non_finite: stop){}. {}", what, first_tensor(), saved()),
        DivergenceKind::non_finite_gradient, step - steps + 1);
  }
  const bool is_last = report.skipped_in_a_row > 0;
  log_warning(fmt::format("{} and were skipped{}", what, is_last ? first_tensor() : ""));
  check_row(report, step, saved);
}

void SkipGuard::check_row(const StepReport& report, int64_t step,
                          const std::function<std::string()>& saved) const {
  if (report.skipped_in_a_row >= most_in_a_row_ && !searching(report)) {
    throw DivergenceError(
        fmt::format("the gradients of the last {} steps up to step {} were not finite: training "
                    "has diverged; lower optimizer.lr{}. {}",
                    report.skipped_in_a_row, step, first_tensor(), saved()),
        DivergenceKind::skipped_steps, step - report.skipped_in_a_row + 1);
  }
}

}  // namespace fp8train
