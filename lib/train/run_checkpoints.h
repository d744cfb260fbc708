#pragma once
// The checkpoints that a run saves while it trains: which steps are saved, and which are not.
// A checkpoint of a run that has diverged would replace older ones that are good. All functions are
// collective; the engine, the session and the communicator outlive the object.

#include <cstdint>
#include <filesystem>
#include <string>

#include "train/skip_guard.h"
#include "train/training_state.h"

namespace fp8train {

class RunCheckpoints {
 public:
  RunCheckpoints(std::filesystem::path root, const Session& session, const SkipGuard& skips,
                 Communicator& comm)
      : root_(std::move(root)), session_(&session), skips_(&skips), comm_(&comm) {}

  /// The run goes on from a checkpoint of this step.
  void resumed_at(int64_t step) { saved_step_ = step; }

  /// Compares what ranks hold alike, once in a step and where the configuration asks for it. Throws
  /// DeviceError. Before each save this happens too.
  void check_replicas(Engine& engine, const TrainingState& state);

  /// A save was put off and waits for the next good step.
  bool is_due() const { return is_due_; }

  /// Between steps. A step that was skipped or whose loss is not finite is put off with a warning.
  void save_if_good(Engine& engine, const TrainingState& state);

  /// At the end or before a stop. Where the last step was skipped, its weights are those of the
  /// step before: they are saved, and older checkpoints are not deleted.
  void save_last(Engine& engine, const TrainingState& state);

  /// Throws NumericError where the last step was skipped, and not in search of a loss scale, or its
  /// loss is not finite: such a run does not end as done.
  void check_end(Engine& engine, const TrainingState& state) const;

  /// A sentence for messages: what is left of the run.
  std::string what_is_saved() const;

 private:
  void save(Engine& engine, const TrainingState& state, int64_t keep_last);
  bool was_skipped(const StepReport& report) const {
    return report.skipped_in_a_row > 0 && !skips_->searching(report);
  }

  std::filesystem::path root_;
  const Session* session_;
  const SkipGuard* skips_;
  Communicator* comm_;
  int64_t saved_step_ = -1;
  int64_t compared_step_ = -1;
  bool is_due_ = false;
};

}  // namespace fp8train
