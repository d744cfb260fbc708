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

/// Called on the first rank by the thread that trains; what is passed lives as long as the call. It
/// does nothing: classes that show a run override it.
class RunListener {
 public:
  virtual ~RunListener() = default;

  virtual void opened(const RunDirectory& /*directory*/) {}
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
