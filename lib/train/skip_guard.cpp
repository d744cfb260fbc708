#include "train/skip_guard.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"

namespace fp8train {

void SkipGuard::check(const StepReport& report, int64_t step, int64_t steps,
                      const std::string& saved) {
  const int64_t skips = report.skipped_steps - seen_;
  seen_ = report.skipped_steps;
  if (skips == 0 || searching(report)) {
    return;
  }
  const std::string what = fmt::format(
      "{} of the {} steps up to step {} had a gradient that was not finite", skips, steps, step);
  if (non_finite_ == "stop") {
    throw NumericError(what + " (training.non_finite: stop); " + saved);
  }
  log_warning(what + " and were skipped");
  check_row(report, step, saved);
}

void SkipGuard::check_row(const StepReport& report, int64_t step, const std::string& saved) const {
  if (report.skipped_in_a_row >= most_in_a_row_ && !searching(report)) {
    throw NumericError(fmt::format(
        "the gradients of the last {} steps up to step {} were not finite: training has diverged; "
        "lower optimizer.lr. {}",
        report.skipped_in_a_row, step, saved));
  }
}

}  // namespace fp8train
