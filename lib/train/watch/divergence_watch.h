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

class DivergenceWatch {
 public:
  /// `searches`: as of SkipGuard.
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

  /// The steps since the last time. Where it is called depends on the step alone, so that a resumed
  /// run finds the same at the same step. `saved` ends messages: what is left of the run; called
  /// only for an error, by all ranks. `next_batch`: the last step's micro-batches of this rank;
  /// called where it was skipped.
  void check(Engine& engine, Communicator& comm, TrainingState& state,
             const std::function<std::string()>& saved, const std::function<Batch()>& next_batch);

 private:
  SkipGuard skips_;
  SpikeDetector spikes_;
  int64_t checked_step_ = 0;
};

}  // namespace fp8train
