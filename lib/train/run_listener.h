#pragma once
// The events of a run as facts, to be worded by the caller of train().

#include <cstdint>
#include <optional>
#include <string>

#include "train/checkpoint/training_state.h"
#include "train/preflight.h"
#include "train/records/run_records.h"

namespace fp8train {

struct RunParts;

/// A step that was to be saved, and is not yet.
struct UnsavedStep {
  enum class Reason { loss_not_finite, gradient_not_finite, high_loss, earlier_save, failure };
  int64_t step = 0;
  Reason reason = Reason::failure;
  int64_t other_step = 0;  ///< of the checkpoint that is intact, none below 1; of an earlier save
  std::string failure;
  int64_t failures = 0;  ///< in a row, of at most `max_failures`
  int64_t max_failures = 0;
};

/// An automatic interval of saves, in seconds but for its steps.
struct FoundInterval {
  int64_t steps = 0;
  double seconds = 0;  ///< of the interval
  double stall = 0;    ///< in which a save stops training
  double write = 0;
  double mtbf = 0;
  double lost_part = 0;  ///< of the job's time
};

/// Called on the first rank by the thread that trains; what is passed lives as long as the call. It
/// does nothing: classes that show a run override it.
class RunListener {
 public:
  virtual ~RunListener() = default;

  virtual void opened(const RunDirectory& /*directory*/) {}
  /// Session::notes, and those of its settings, are to be shown.
  virtual void noted(const Session& /*session*/) {}
  /// The start and the memory of the run are known. `dry_run` is of largest_stage().
  virtual void planned(const RunParts& /*parts*/, const RankMemory& /*memory*/,
                       const DryRunStep& /*dry_run*/) {}
  /// The data files are hashed, `bytes_left` of them while the run continues.
  virtual void hashed(size_t /*files*/, uint64_t /*bytes_left*/) {}
  /// The run starts from an older checkpoint than planned, in another stage.
  virtual void entered_stage(const Session& /*session*/, const RankMemory& /*memory*/,
                             int64_t /*steps_done*/) {}
  /// The run has all of the checkpoint `folder` of this step; without one, the weights of a model.
  virtual void loaded(const std::string& /*folder*/, std::optional<int64_t> /*step*/) {}
  /// "optimizer.lr: 0.001 -> 0.002": since the checkpoint was saved.
  virtual void changed(const std::string& /*setting*/) {}

  virtual void did_step(int64_t /*step*/, int64_t /*max_steps*/) {}
  virtual void measured(const StepMetrics& /*metrics*/) {}
  /// `is_final`: over all of the data, which are documents if `of_documents`.
  virtual void validated(int64_t /*step*/, const LossReport& /*loss*/, bool /*is_final*/,
                         bool /*of_documents*/) {}
  virtual void put_off_save(const UnsavedStep& /*unsaved*/) {}
  virtual void found_interval(const FoundInterval& /*interval*/) {}
  /// The last of the state's rollbacks has been made.
  virtual void went_back(const DivergenceError& /*divergence*/, const TrainingState& /*state*/,
                         int64_t /*max_rollbacks*/) {}
  virtual void sampled(int64_t /*step*/, const std::string& /*text*/) {}
  /// Steps after `step` have this plan, or none of its scales. `is_new`: the engine is another one.
  virtual void changed_plan(int64_t /*step*/, const PrecisionPlan& /*plan*/, bool /*scales*/,
                            bool /*is_new*/) {}

  /// All steps are done; warnings and the final evaluation follow.
  virtual void did_all_steps() {}
  virtual void stopped(int64_t /*step*/, const std::string& /*reason*/) {}
  /// All steps had been done before this start.
  virtual void had_nothing_to_do(int64_t /*step*/, const Session& /*session*/) {}
  /// `steps` and `seconds`: of this start.
  virtual void finished(const TrainingState& /*state*/, const Session& /*session*/,
                        int64_t /*steps*/, double /*seconds*/) {}
};

}  // namespace fp8train
