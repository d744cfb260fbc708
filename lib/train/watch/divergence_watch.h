#pragma once
// Checks the results of a run's steps, and throws DivergenceError when the run has diverged. All
// functions are collective and wait for the device; the engine outlives the call only.

#include <cstdint>
#include <functional>
#include <string>

#include "comm/communicator.h"
#include "train/checkpoint/training_state.h"
#include "train/step/engine.h"
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

  /// The run starts at this state, which the engine has. High losses are forgotten where nobody
  /// looks for spikes any more: they would put off all saves.
  void begin_at(TrainingState& state, Engine& engine);

  /// Brings the TrainingState up to the last step, for a checkpoint: spikes, unseen_skips and
  /// checked_step.
  void take_losses(Engine& engine, TrainingState& state);

  /// Whether check() has been called after this step.
  bool has_checked(int64_t step) const { return checked_step_ == step; }

  /// Checks the steps since the last call. Whether it is called depends on the step alone, so that
  /// a resumed run finds the same at the same step. `saved` returns the end of messages, which
  /// names what is saved of the run; it is called only for an error, by all ranks. `next_batch`:
  /// the last step's micro-batches of this rank; called where it was skipped.
  void check(Engine& engine, Communicator& comm, TrainingState& state,
             const std::function<std::string()>& saved, const std::function<Batch()>& next_batch);

 private:
  SkipGuard skips_;
  SpikeDetector spikes_;
  int64_t checked_step_ = 0;
};

}  // namespace fp8train
