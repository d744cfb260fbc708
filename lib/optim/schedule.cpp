#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace fp8train {
namespace {

double fraction(int64_t done, int64_t total) {
  return total <= 0 ? 1.0
                    : std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0);
}

}  // namespace

double learning_rate(const ScheduleSettings& schedule, double lr, int64_t step, int64_t max_steps) {
  if (step < schedule.warmup_steps) {
    return lr * static_cast<double>(step + 1) / static_cast<double>(schedule.warmup_steps + 1);
  }
  const double low = schedule.min_lr;
  if (schedule.type == ScheduleType::constant) {
    return lr;
  }
  if (schedule.type == ScheduleType::wsd) {
    if (step < max_steps - schedule.decay_steps) {
      return lr;
    }
    const int64_t decay_begin = max_steps - schedule.decay_steps;
    return lr + (low - lr) * fraction(step - decay_begin, schedule.decay_steps);
  }
  const int64_t decay_end =
      schedule.decay_steps == 0 ? max_steps : schedule.warmup_steps + schedule.decay_steps;
  const double progress = fraction(step - schedule.warmup_steps, decay_end - schedule.warmup_steps);
  if (schedule.type == ScheduleType::linear) {
    return lr + (low - lr) * progress;
  }
  return low + (lr - low) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
}

}  // namespace fp8train
