#pragma once
// The checkpoints that a run saves while it trains: which steps are saved, and which are not.
// A checkpoint of a run that has diverged would replace older ones that are good. A save that fails
// makes a warning and is counted; it does not end the run, until checkpoint.max_failed_saves in a
// row have failed. All functions are collective; the engine, the session, the records and the
// communicator outlive the object.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "base/clock.h"
#include "train/checkpoint/checkpoint_saver.h"
#include "train/checkpoint/training_state.h"
#include "train/records/run_records.h"
#include "train/run_listener.h"
#include "train/watch/divergence_watch.h"

namespace fp8train {

/// Seconds of training between two saves that lose the least time, where a save stops training for
/// `cost` seconds and the job fails every `mtbf` seconds on average: J. T. Daly, "A higher order
/// estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer
/// Systems 22 (2006), equation 37, whose first term is that of J. W. Young, "A first order
/// approximation to the optimum checkpoint interval", Communications of the ACM 17 (1974).
double best_save_seconds(double cost, double mtbf);

/// Seconds between failures of a job of `ranks` where nobody has said: 9000 hours over the ranks,
/// as on Meta's clusters of A100 GPUs (Kokolis et al., "Revisiting Reliability in Large-Scale
/// Machine Learning Research Clusters", arXiv 2410.21680).
double assumed_mtbf(int ranks);

/// Decides at which steps a run saves: at a fixed interval, or, with checkpoint.interval auto, at
/// the one that loses the least time, from the cost of a save and the failure rate of the job.
class SaveInterval {
 public:
  /// Saves never if `steps` is 0, and at an interval found from earlier saves if it is
  /// kAutomaticInterval. `mtbf` is in seconds.
  SaveInterval(int64_t steps, double mtbf) : steps_(steps), mtbf_(mtbf) {}

  /// Whether the interval is found from the cost of saves.
  bool is_automatic() const;
  /// False: no step saves at an interval.
  bool exists() const { return steps_ != 0; }

  /// The run begins, or continues, after this step. An automatic one saves soon, to know the cost.
  void begin(int64_t step);

  /// Whether the run saves after this step.
  bool is_due(int64_t step) const;

  /// The cost of a save. Times are those of the first rank, and the same on all.
  struct Cost {
    double stall_seconds = 0;  ///< in which training stopped
    double write_seconds = 0;  ///< in which no other save can begin
    double step_seconds = 0;   ///< seconds of a step, with all work between steps
  };
  /// A save of `step` is over: an automatic interval is computed anew.
  void saved(int64_t step, const Cost& cost);
  /// A save of `step` has failed: an automatic one is tried again after one interval.
  void failed(int64_t step);

  /// Returns the interval after it has changed by more than a fifth, else nothing.
  std::optional<FoundInterval> take_change();

 private:
  int64_t steps_;
  double mtbf_;
  int64_t found_ = 0;  ///< steps between automatic saves; 0: not known yet
  int64_t next_ = 0;   ///< step of the next automatic save
  int64_t reported_ = 0;
  Cost cost_;
};

/// Returns a sentence that names the checkpoint from which a run can be resumed, if there is one.
std::string intact_checkpoint(int64_t step);

/// All saves of this start of the run.
struct SaveTotals {
  int64_t saved = 0;
  int64_t failed = 0;
  double stall_seconds = 0;
  double write_seconds = 0;
};

/// The checkpoints of a run: it saves them when they are due and deletes the older ones.
class RunCheckpoints {
 public:
  RunCheckpoints(const std::filesystem::path& root, const Session& session, const SkipGuard& skips,
                 RunRecords& records, Communicator& comm, RunListener& listener);

  /// The run begins, or continues from the checkpoint `resumed`, which may be another run's. Takes
  /// the memory that saves between steps need.
  void begin(Engine& engine, const TrainingState& state,
             const std::optional<std::filesystem::path>& resumed);

  /// Waits for the save in flight, before the run goes back to a checkpoint.
  void finish();
  /// The run has gone back to the checkpoint of this step.
  void went_back_to(int64_t step);

  /// Compares the tensors that ranks hold alike, at most once in a step, if the configuration asks
  /// for it. This also happens before each save. Throws DeviceError, after the end of the save in
  /// flight.
  void check_replicas(Engine& engine, const TrainingState& state);

  /// Whether a save is due after this step, or was put off and waits for the next good step.
  bool is_due(int64_t step) const {
    const bool must_wait = interval_.is_automatic() && saver_.in_flight();
    return is_due_ || (interval_.is_due(step) && !must_wait);
  }

  /// Between steps: looks after the save in flight. Returns whether try_last_time() must follow.
  [[nodiscard]] bool advance(const TrainingState& state);
  /// Saves this step after too many failures in a row. Throws DeviceError where that fails too. No
  /// save is in flight.
  void try_last_time(Engine& engine, const TrainingState& state);

  /// Called between steps. A step that was skipped or whose loss is not finite, or high
  /// (TrainingState::spikes), is put off with a warning.
  void save_if_good(Engine& engine, const TrainingState& state);

  /// Called before a stop: the checkpoint is published when it returns. If the last step was
  /// skipped, its weights are those of the step before: they are saved, and older checkpoints are
  /// not deleted. Throws DeviceError if two attempts have failed.
  void save_last(Engine& engine, const TrainingState& state);

  /// The run has done its last step. Waits for the save in flight, and saves this step as
  /// save_last() does if `saves`, or if the last save has failed. Throws DivergenceError where the
  /// step was skipped, and not in search of a loss scale, or its loss is not finite: such a run
  /// does not end as done, and its last step is not saved.
  void end(Engine& engine, const TrainingState& state, bool saves);

  const SaveTotals& totals() const { return totals_; }

 private:
  void save(Engine& engine, const TrainingState& state);
  void start(Engine& engine, TrainingState state, bool is_scheduled);
  void charge_copy(Engine& engine);
  void end_save(const SaveResult& result);
  void agree_on_interval(const SaveResult& result);
  [[noreturn]] void give_up() const;
  void check_last_step(Engine& engine, const TrainingState& state) const;
  /// Whether older checkpoints may go for one of this step.
  bool is_good(Engine& engine, const TrainingState& state) const {
    return !was_skipped(engine.optimizer().control()) && state.spikes.high_steps == 0;
  }
  bool has_failed_too_often() const {
    return failed_in_a_row_ >= session_->settings.checkpoint.max_failed_saves;
  }
  bool was_skipped(const ops::StepControl& control) const {
    return control.skipped_in_a_row > 0 && !skips_->searching(control);
  }

  std::filesystem::path root_;
  const Session* session_;
  const SkipGuard* skips_;
  RunRecords* records_;
  Communicator* comm_;
  RunListener* listener_;
  CheckpointSaver saver_;
  SaveInterval interval_;
  SaveTotals totals_;
  static constexpr int64_t kNone = -1;
  int64_t saved_step_ = kNone;
  int64_t compared_step_ = kNone;
  bool is_due_ = false;
  int64_t failed_in_a_row_ = 0;
  std::string last_failure_;
  bool has_waited_ = false;   // for the save in flight when the next one was due
  size_t charged_bytes_ = 0;  // to the ledger of a device that is the host
  int64_t first_step_ = 0;
  int64_t last_step_ = 0;
  Stopwatch since_begin_;
};

}  // namespace fp8train
