#include "train/checkpoint/save_interval.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/quantities.h"
#include "config/settings.h"

namespace fp8train {
namespace {

/// Steps before the first automatic save, which shows what one costs.
constexpr int64_t kFirst = 10;

}  // namespace

double best_save_seconds(double cost, double mtbf) {
  if (cost >= 2 * mtbf) {
    return mtbf;
  }
  const double part = cost / (2 * mtbf);
  return std::sqrt(2 * cost * mtbf) * (1 + std::sqrt(part) / 3 + part / 9) - cost;
}

double assumed_mtbf(int ranks) {
  constexpr double kRankSeconds = 9000.0 * 3600;
  return kRankSeconds / std::max(ranks, 1);
}

bool SaveInterval::is_automatic() const {
  return steps_ == kAutomaticInterval;
}

void SaveInterval::begin(int64_t step) {
  next_ = step + kFirst;
}

bool SaveInterval::is_due(int64_t step) const {
  return is_automatic() ? step >= next_ : steps_ > 0 && step % steps_ == 0;
}

void SaveInterval::saved(int64_t step, const Cost& cost) {
  // The last save counts half, all that were before it the other half.
  const double weight = found_ == 0 ? 1 : 0.5;
  cost_ = {.stall_seconds = weight * cost.stall_seconds + (1 - weight) * cost_.stall_seconds,
           .write_seconds = weight * cost.write_seconds + (1 - weight) * cost_.write_seconds,
           .step_seconds = cost.step_seconds};
  const double step_seconds = std::max(cost.step_seconds, 1e-9);
  const double best = best_save_seconds(std::max(cost_.stall_seconds, 1e-6), mtbf_);
  // A save that begins before the one before it is written would wait.
  const double seconds = std::max(best, cost_.write_seconds);
  constexpr double kMost = 1e15;
  found_ = static_cast<int64_t>(std::clamp(std::ceil(seconds / step_seconds), 1.0, kMost));
  next_ = step + found_;
}

void SaveInterval::failed(int64_t step) {
  next_ = step + (found_ > 0 ? found_ : kFirst);
}

std::string SaveInterval::take_change() {
  const bool is_news = reported_ == 0 || found_ * 5 > reported_ * 6 || found_ * 5 < reported_ * 4;
  if (!is_automatic() || found_ == 0 || !is_news) {
    return {};
  }
  reported_ = found_;
  const double seconds = static_cast<double>(found_) * cost_.step_seconds;
  const double lost = cost_.stall_seconds / seconds + seconds / (2 * mtbf_);
  return fmt::format(
      "checkpoint.interval auto: a save every {} steps ({}); one stops training for {:.2g} s and "
      "is written in {:.2g} s, and the job is taken to fail every {}: {:.2g} % of its time is lost",
      found_, describe_duration(seconds), cost_.stall_seconds, cost_.write_seconds,
      describe_duration(mtbf_), 100 * lost);
}

}  // namespace fp8train
