#pragma once
// The checkpoints that a run saves while it trains: which step is saved, and which is not worth it.
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

  /// A save was put off and waits for the next good step.
  bool is_due() const { return is_due_; }

  /// Between steps. A step that was skipped or whose loss is not finite is put off with a warning.
  void save_if_good(Engine& engine, const TrainingState& state);

  /// At the end or before a stop: false, with a warning, where the loss of the last step is not
  /// finite. Where the last step was skipped, older checkpoints stay besides.
  bool save_last(Engine& engine, const TrainingState& state);

  /// Throws NumericError where the last step was skipped, and not in search of a loss scale: a run
  /// that ends so has not been trained to its end.
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
  bool is_due_ = false;
};

}  // namespace fp8train
