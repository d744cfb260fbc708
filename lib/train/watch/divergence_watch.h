#pragma once
// Checks the results of a run's steps, and throws DivergenceError when the run has diverged.
// begin_at(), take_losses() and check() are collective and wait for the device. The engine may end
// after the call.

#include <cstdint>
#include <functional>
#include <string>

#include "comm/communicator.h"
#include "config/settings.h"
#include "engine/engine.h"
#include "optim/optimizer.h"
#include "train/checkpoint/training_state.h"
#include "train/watch/divergence.h"

namespace fp8train {

/// Counts optimizer steps that were skipped because a gradient was not finite, and throws when too
/// many of them follow each other.
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

/// Checks a run for divergence at intervals, on all ranks alike.
class DivergenceWatch {
 public:
  /// `searches` is as for SkipGuard.
  DivergenceWatch(const TrainingSettings& settings, bool searches)
      : skips_(settings, searches), spikes_(settings) {}

  const SkipGuard& skips() const { return skips_; }

  /// Starts at `state`, which the engine has. If the settings do not look for spikes any more,
  /// removes the high losses from `state`: they would put off all saves.
  void begin_at(TrainingState& state, Engine& engine);

  /// Brings the TrainingState up to the last step, for a checkpoint: spikes, unseen_skips and
  /// checked_step.
  void take_losses(Engine& engine, TrainingState& state);

  /// Whether check() has been called after this step.
  bool has_checked(int64_t step) const { return checked_step_ == step; }

  /// Checks the steps since the last call. With a fixed checkpoint.interval a run calls it at steps
  /// that depend on the settings alone, so that a resumed run finds the same at the same step.
  /// `next_batch` returns the micro-batches of this rank in the last step, one after the other; it
  /// is called if that step was skipped and its first tensor that is not finite is looked for.
  /// Throws DivergenceError.
  void check(Engine& engine, Communicator& comm, TrainingState& state,
             const std::function<Batch()>& next_batch);

 private:
  SkipGuard skips_;
  SpikeDetector spikes_;
  int64_t checked_step_ = 0;
};

}  // namespace fp8train
