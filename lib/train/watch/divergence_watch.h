#pragma once
// Checks the results of a run's steps, and throws DivergenceError when the run has diverged.
// begin_at(), take_losses() and check() are collective and wait for the device. The engine may end
// after the call.

#include <cstdint>
#include <functional>
#include <string>

#include "comm/communicator.h"
#include "engine/engine.h"
#include "train/checkpoint/training_state.h"
#include "train/watch/divergence.h"
#include "train/watch/skip_guard.h"

namespace fp8train {

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
