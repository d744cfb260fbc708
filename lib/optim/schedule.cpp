#include "optim/schedule.h"

#include <cmath>
#include <numbers>

#include "optim/registry.h"

namespace fp8train {
namespace {

double fraction(int64_t done, int64_t total) {
  return total <= 0 ? 1.0
                    : std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0);
}

/// Returns the part that is done of a decay over decay_steps after the warm-up (0: to the end).
double decayed(const ScheduleSettings& schedule, int64_t step, int64_t max_steps) {
  const int64_t end =
      schedule.decay_steps == 0 ? max_steps : schedule.warmup_steps + schedule.decay_steps;
  return fraction(step - schedule.warmup_steps, end - schedule.warmup_steps);
}

double cosine(const ScheduleSettings& schedule, double lr, int64_t step, int64_t max_steps) {
  const double low = schedule.min_lr;
  return low +
         (lr - low) * 0.5 * (1.0 + std::cos(std::numbers::pi * decayed(schedule, step, max_steps)));
}

double linear(const ScheduleSettings& schedule, double lr, int64_t step, int64_t max_steps) {
  return lr + (schedule.min_lr - lr) * decayed(schedule, step, max_steps);
}

/// Returns lr until the last decay_steps, then falls linearly to min_lr (warm-up, stable, decay).
double wsd(const ScheduleSettings& schedule, double lr, int64_t step, int64_t max_steps) {
  const int64_t decay_begin = max_steps - schedule.decay_steps;
  return step < decay_begin
             ? lr
             : lr + (schedule.min_lr - lr) * fraction(step - decay_begin, schedule.decay_steps);
}

double constant(const ScheduleSettings&, double lr, int64_t, int64_t) {
  return lr;
}

const char* lacks_decay(const ScheduleSettings& schedule) {
  return schedule.decay_steps == 0 ? "missing; type wsd needs the length of the final decay"
                                   : nullptr;
}

}  // namespace

const std::vector<ScheduleEntry>& schedules() {
  static const std::vector<std::string_view> decay = {"scheduler.min_lr", "scheduler.decay_steps"};
  static const std::vector<ScheduleEntry> entries = {
      {"cosine", cosine, decay},
      {"linear", linear, decay},
      {"wsd", wsd, decay, lacks_decay},
      {"constant", constant, {}},
  };
  return entries;
}

const ScheduleEntry& schedule_named(std::string_view name) {
  return entry_named(schedules(), name, "scheduler.type");
}

double learning_rate(const ScheduleSettings& schedule, double lr, int64_t step, int64_t max_steps) {
  if (step < schedule.warmup_steps) {
    return lr * static_cast<double>(step + 1) / static_cast<double>(schedule.warmup_steps + 1);
  }
  return schedule_named(schedule.type).rate(schedule, lr, step, max_steps);
}

}  // namespace fp8train
