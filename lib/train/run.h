#pragma once
// One rank's run: it loads what it begins with, trains, evaluates, samples, saves, and stops or
// ends. trainer.h has the function that makes one.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/math.h"
#include "comm/mesh.h"
#include "data/loader.h"
#include "engine/engine.h"
#include "train/checkpoint/run_checkpoints.h"
#include "train/checkpoint/training_state.h"
#include "train/inference/generator.h"
#include "train/rank_device.h"
#include "train/records/progress.h"
#include "train/records/run_records.h"
#include "train/records/step_log.h"
#include "train/run_start.h"
#include "train/session.h"
#include "train/trainer.h"
#include "train/watch/divergence.h"
#include "train/watch/divergence_watch.h"

namespace fp8train {

/// A run from its start to its end: steps, evaluations, samples, checkpoints and rollbacks.
class Run {
 public:
  /// Opens the data, loads the weights or a checkpoint, and reserves all memory. `comm` and
  /// `rank_device` outlive the run. Collective. Throws as train() does.
  Run(const RunRequest& request, Communicator& comm, RankDevice& rank_device);
  /// Trains to the last step or until a stop. Collective. Throws as train() does.
  RunOutcome run();
  /// Frees the folder of a run with several ranks. Called after an error, before the other ranks
  /// are ended, and this process with them.
  void release_lock() const {
    if (comm_->size() > 1) {
      records_.release_lock();
    }
  }
  /// Publishes the save in flight after an error. With several ranks it does nothing, since all
  /// would have to take part.
  void publish_save_in_flight() noexcept;

 private:
  void start(const RunRequest& request, FoundStart found);
  RunStart load_newest(FoundStart& found);
  StepPlan plan_of_stage() const;
  void make_engine(const StepPlan& plan);
  void make_generator();
  void begin_at(const TrainingState& state);
  void enter_stage_of_step();
  void enter_stage(size_t stage);
  void begin_stage();
  void say_changes(const std::filesystem::path& saved_run, std::vector<std::string> changes);
  Batch next_batch();
  void observe_step(bool ends);
  void train_one_step();
  void check_divergence();
  void go_back(const DivergenceError& divergence);
  RunOutcome train_to_end();
  /// Evaluates and records the loss. Returns false, and records nothing, if a stop was requested
  /// meanwhile.
  bool evaluate(int64_t max_batches, bool final);
  void sample();
  void check_replicas();
  void look_after_checkpoints();
  std::string reason_to_stop() const;
  void say_nothing_to_do();
  RunOutcome stop(const std::string& reason);
  RunOutcome finish();
  JsonObject summary(double seconds) const;

  int64_t sample_capacity() const {
    return longest_prompt(settings().sample, *session_.tokenizer) +
           settings().sample.max_new_tokens;
  }
  LoaderSettings loader_settings() const {
    return {.micro_batch_size = session_.engine.step.micro_batch_size,
            .seq_length = session_.engine.step.seq_length,
            .shuffle = settings().data.shuffle,
            .seed = settings().step.seed,
            .data_rank = mesh_.index(Axis::data),
            .data_ranks = mesh_.size(Axis::data),
            .batches_per_step = session_.engine.step.gradient_accumulation_steps};
  }
  bool due(int64_t interval) const { return interval > 0 && state_.step % interval == 0; }
  bool evaluation_is_due() const {
    return due(settings().eval.interval) && session_.data.val.size() > 1 &&
           state_.step < session_.max_steps;
  }
  void evaluate_in_between() {
    const int64_t ranks = mesh_.size(Axis::data);
    evaluate(ceil_div(settings().eval.batches, ranks), false);
  }
  const Settings& settings() const { return session_.settings; }
  bool leads() const { return mesh_.leads(); }

  Communicator* comm_;
  Mesh mesh_;
  Session session_;
  RunRecords records_;
  Device* device_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<Generator> generator_;
  DivergenceWatch watch_;
  RunCheckpoints checkpoints_;
  Progress progress_;
  StepLog step_log_;
  TrainingState state_;
  std::string resolved_config_, earlier_config_;
  bool nothing_to_do_ = false;  // all steps had been done before this start
  int64_t threads_ = 0;
  Stopwatch since_start_;
  int64_t steps_done_ = 0;  // steps that this start of the run has done; repeated steps count again
  uint64_t step_begin_ = 0;  // the loader's position before the last step
  Traffic sent_;             // in the last step
};

}  // namespace fp8train
