#pragma once
// The table of learning-rate schedules. A schedule is a pure function of the step, and an entry
// here. The configuration asks this table which keys apply.

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "optim/settings.h"

namespace fp8train {

struct ScheduleEntry {
  std::string_view name;  ///< scheduler.type
  /// Returns the learning rate of step `step` after the warm-up, in a run of `max_steps`.
  double (*rate)(const ScheduleSettings& schedule, double lr, int64_t step, int64_t max_steps);
  /// Keys that this schedule reads and not all others do: "scheduler.min_lr".
  std::vector<std::string_view> keys;
  /// Returns what is wrong with scheduler.decay_steps for it, or null. Null: no check.
  const char* (*lacks)(const ScheduleSettings& schedule) = nullptr;

  bool reads(std::string_view key) const {
    return std::find(keys.begin(), keys.end(), key) != keys.end();
  }
};

/// Returns the table of schedules.
const std::vector<ScheduleEntry>& schedules();
/// Returns the entry with this name. Throws ConfigError that lists all names if there is none.
const ScheduleEntry& schedule_named(std::string_view name);

/// Returns the learning rate of optimizer step `step` (counted from 0) of a run of `max_steps`.
/// Warm-up is linear: step s of w has lr * (s + 1) / (w + 1), as in nanoGPT. The rate of the
/// schedule follows.
double learning_rate(const ScheduleSettings& schedule, double lr, int64_t step, int64_t max_steps);

}  // namespace fp8train
