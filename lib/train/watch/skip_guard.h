#pragma once
// Watches for optimizer steps that were skipped because a gradient was not finite.

#include <cstdint>
#include <string>

#include "config/settings.h"
#include "optim/optimizer.h"

namespace fp8train {

/// Counts skipped steps and throws when too many of them follow each other.
class SkipGuard {
 public:
  /// `searches`: with dynamic loss scaling a skipped step is how the scale is found, as long as
  /// there is space below.
  SkipGuard(const TrainingSettings& settings, bool searches)
      : non_finite_(settings.non_finite),
        most_in_a_row_(settings.max_consecutive_skips),
        searches_(searches) {}

  /// Starts to count. `seen`: skipped steps that have been checked before, perhaps by the process
  /// before this one.
  void begin(int64_t seen) {
    seen_ = seen;
    first_tensor_.clear();
  }

  /// Whether a skipped step is part of the search for a loss scale.
  bool searching(const ops::StepControl& control) const {
    return searches_ && control.loss_scale > 1.0F;
  }

  /// Whether the first tensor that is not finite should be looked for: the last of the last
  /// `steps` steps was skipped, and a message will say so.
  bool wants_first_tensor(const ops::StepControl& control, int64_t steps) const;
  /// Sets the tensor that messages name from now on; "" if it is not known.
  void set_first_tensor(std::string name) { first_tensor_ = std::move(name); }
  /// Returns "; the first tensor that is not finite: ...", or "" if it is not known.
  std::string first_tensor() const;

  /// Checks the last `steps` steps, which end with `step`. Does nothing for steps that are part of
  /// the search for a loss scale. Warns, or throws DivergenceError if training.non_finite is stop,
  /// or the last max_consecutive_skips steps were all skipped (the device counts them, so that it
  /// does not matter how often this is asked).
  void check(const ops::StepControl& control, int64_t step, int64_t steps);

  /// Throws DivergenceError if the last max_consecutive_skips steps were all skipped, and not in
  /// search of a loss scale.
  void check_row(const ops::StepControl& control, int64_t step) const;

  /// Returns the number of skipped steps that check() has not seen.
  int64_t unseen(const ops::StepControl& control) const { return control.skipped_steps - seen_; }

 private:
  OnNonFinite non_finite_;
  int64_t most_in_a_row_;
  bool searches_;
  int64_t seen_ = 0;
  std::string first_tensor_;
};

}  // namespace fp8train
