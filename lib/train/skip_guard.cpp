#include "train/skip_guard.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"

namespace fp8train {

void SkipGuard::check(const StepReport& report, int64_t step, int64_t steps,
                      const std::string& saved) {
  const int64_t skips = report.skipped_steps - seen_;
  seen_ = report.skipped_steps;
  in_a_row_ = skips == steps ? in_a_row_ + skips : 0;
  const bool searching = searches_ && report.loss_scale > 1.0F;
  if (skips == 0 || searching) {
    return;
  }
  const std::string what = fmt::format(
      "{} of the {} steps up to step {} had a gradient that was not finite", skips, steps, step);
  if (non_finite_ == "stop") {
    throw NumericError(what + " (training.non_finite: stop); " + saved);
  }
  log_warning(what + " and were skipped");
  if (in_a_row_ >= most_in_a_row_) {
    throw NumericError(fmt::format("{}, {} in a row", what, in_a_row_) +
                       "; training has diverged: lower optimizer.lr. " + saved);
  }
}

}  // namespace fp8train
