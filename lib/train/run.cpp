#include "train/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/flight_recorder.h"
#include "base/key_error.h"
#include "base/log.h"
#include "base/math.h"
#include "base/on_exit.h"
#include "base/signals.h"
#include "config/load.h"
#include "config/show.h"
#include "data/loader.h"
#include "engine/dry_run.h"
#include "optim/schedule.h"
#include "train/checkpoint/data_record.h"
#include "train/checkpoint/resume_checks.h"
#include "train/checkpoint/rollback.h"
#include "train/checkpoint/run_checkpoints.h"
#include "train/inference/generator.h"
#include "train/ranks.h"
#include "train/records/environment.h"
#include "train/records/step_log.h"
#include "train/run_listener.h"
#include "train/run_start.h"
#include "train/watch/divergence_watch.h"
#include "train/watch/run_watchdog.h"

namespace fp8train {
namespace {

StepObserver step_observer = nullptr;

/// One rank's run from the start of its engine to its end: steps, evaluations, samples, checkpoints
/// and rollbacks.
class Run {
 public:
  /// Loads the weights or a checkpoint, and reserves all memory. `comm` and the device of `parts`
  /// outlive the run. Collective. Throws as train() does.
  Run(RunParts parts, const RunRequest& request, Communicator& comm)
      : comm_(&comm),
        mesh_(mesh_shape(parts.session.settings.parallelism.layout, comm.topology()), comm.rank(),
              nullptr),
        since_start_(parts.since_start),
        session_(std::move(parts.session)),
        records_(std::move(parts.records)),
        device_(parts.rank_device->device.get()),
        watch_(settings().training, session_.stages.front().plan.dynamic_loss_scaling),
        checkpoints_(records_.directory().checkpoints(), session_, watch_.skips(), records_, comm,
                     *parts.listener),
        listener_(parts.listener),
        step_log_(session_, *device_, comm.topology(), records_, *listener_, leads()),
        resolved_config_(show_settings(session_.settings, true)),  // with the steps of warm-up
        earlier_config_(std::move(parts.earlier_config)) {
    make_engine(parts.plan);
    loader_ = std::make_unique<Loader>(session_.data.train, loader_settings());
    start(request, std::move(parts.found), parts.threads);
    make_generator();
  }

  /// Trains to the last step or until a stop. Collective. Throws as train() does.
  RunOutcome run() {
    const SectionScope section(Section::step);
    if (FlightRecorder* const recorder = flight_recorder()) {
      recorder->take_seconds();  // what happens before the first step makes no straggler
    }
    if (nothing_to_do_) {
      listener_->had_nothing_to_do(state_.step, session_);
      return RunOutcome::finished;
    }
    while (true) {
      try {
        return train_to_end();
      } catch (const DivergenceError& divergence) {
        go_back(divergence);
      }
    }
  }

  /// Frees the folder of a run with several ranks. Called after an error, before the other ranks
  /// are ended, and this process with them.
  void release_lock() const {
    if (comm_->size() > 1) {
      records_.release_lock();
    }
  }

  /// Publishes the save in flight after an error. With several ranks it does nothing, since all
  /// would have to take part.
  void publish_save_in_flight() noexcept {
    if (comm_->size() > 1) {
      return;
    }
    try {
      checkpoints_.finish();
    } catch (const std::exception& error) {
      log_warning(fmt::format("the save in flight has failed: {}", error.what()));
    }
  }

 private:
  const Settings& settings() const { return session_.settings; }
  bool leads() const { return mesh_.leads(); }
  bool due(int64_t interval) const { return interval > 0 && state_.step % interval == 0; }
  bool evaluation_is_due() const {
    return due(settings().eval.interval) && session_.data.val.size() > 1 &&
           state_.step < session_.max_steps;
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

  void start(const RunRequest& request, FoundStart found, int64_t threads) {
    const ResumedRun start = load_newest(found);
    if (!start.folder.empty()) {
      listener_->loaded(start.folder.string(),
                        found.checkpoint ? std::optional(start.state.step) : std::nullopt);
    }
    log_warnings(start.notes);
    if (found.checkpoint) {
      show_changes(found.checkpoint->parent_path().parent_path(), start.changes);
    }
    begin_at(start.state);
    checkpoints_.begin(*engine_, state_, found.checkpoint);
    const bool finished = is_over(session_, records_.directory(), state_.step);
    nothing_to_do_ = first_rank_says(*comm_, finished);  // folders may look older on other nodes
    // Only now: a run that was refused leaves the records of the one before as they are.
    if (leads() && !nothing_to_do_) {
      describe_run(
          records_.directory(), resolved_config_, request.command,
          describe_environment(request.version, request.command, comm_->size(), threads, *device_));
    }
  }

  /// Loads the start, or an older one where a file of it turns out to be damaged on any rank.
  ResumedRun load_newest(FoundStart& found) {
    const std::filesystem::path checkpoints = records_.directory().checkpoints();
    while (true) {
      try {
        ResumedRun start = load_start(session_, found, *engine_, *device_, *comm_);
        agree_on_step(*comm_, start.state.step, checkpoints);
        return start;
      } catch (const OtherRunError&) {
        throw;
      } catch (CheckpointError& error) {
        const ResumeFrom from = settings().checkpoint.resume_from();
        if (!found.checkpoint || from == ResumeFrom::folder) {
          prepend(error, found.checkpoint ? "checkpoint.resume: " : "");
          throw;
        }
        found = find_older_start(checkpoints, found, error.what(), *comm_);
      }
      const size_t stage = session_.stage_after(found.step);
      if (session_.stages[stage].plan.name != session_.engine.plan.name) {
        enter_stage(stage);
        // The overview has that of another stage.
        listener_->entered_stage(session_, memory_here(*device_, comm_->local_size()), found.step);
      }
    }
  }

  /// Reports the settings that differ from those of the run that saved the checkpoint: not an
  /// error, but never silent. `changes`: those that the checkpoint names, which may be another
  /// run's than the folder.
  void show_changes(const std::filesystem::path& saved_run, std::vector<std::string> changes) {
    const bool own = std::filesystem::weakly_canonical(saved_run) ==
                     std::filesystem::weakly_canonical(records_.directory().root);
    const std::string before = own ? earlier_config_ : earlier_config({saved_run});
    if (!before.empty()) {
      for (const std::string& change : changed_settings(before, resolved_config_)) {
        if (std::find(changes.begin(), changes.end(), change) == changes.end()) {
          changes.push_back(change);
        }
      }
    }
    for (const std::string& change : changes) {
      listener_->changed(change);
    }
  }

  /// The engine has the weights and all else of this state.
  void begin_at(const TrainingState& state) {
    state_ = state;
    share_weights(engine_->mesh(), *device_, engine_->model().parameters());
    engine_->weights_changed();
    watch_.begin_at(state_, *engine_);
    engine_->enter_step(state_.step - 1);
    loader_->seek(state_.sample_position);
    records_.begin_metrics(state_.step, settings().logging.interval);
    step_log_.predict(*engine_);
    comm_->barrier().wait();
    step_log_.begin_at(state_.step);
  }

  RunOutcome train_to_end() {
    records_.open_sinks(settings().logging, state_.step, resolved_config_);
    step_log_.restart_time();
    if (state_.step > 0 && evaluation_is_due() && state_.val_step != state_.step) {
      evaluate_in_between();  // a stop had cut it short
    }
    while (state_.step < session_.max_steps) {
      if (const std::string reason = reason_to_stop(); !reason.empty()) {
        return stop(reason);
      }
      enter_stage_of_step();
      train_one_step();
      listener_->did_step(state_.step, session_.max_steps);
      if (due(settings().parallelism.check_replicas)) {
        check_replicas();
      }
      if (evaluation_is_due()) {
        evaluate_in_between();
      }
      if (due(settings().sample.interval)) {
        sample();
      }
      look_after_checkpoints();
    }
    return finish();
  }

  void train_one_step() {
    if (FlightRecorder* const recorder = flight_recorder()) {
      recorder->begin_step(state_.step + 1);
    }
    check_data(session_);
    const bool last = state_.step + 1 == session_.max_steps;
    const bool logs = last || (state_.step + 1) % settings().logging.interval == 0;
    const double lr = learning_rate(settings().scheduler, settings().optimizer.lr, state_.step,
                                    session_.max_steps);
    const Traffic before = comm_->traffic();
    step_begin_ = loader_->position();
    observe_step(false);
    engine_->step([this] { return next_batch(); }, state_.step, lr, logs);
    if (logs) {
      step_log_.look_at_gpu();
    }
    observe_step(true);
    sent_ = {comm_->traffic().within_node - before.within_node,
             comm_->traffic().between_nodes - before.between_nodes};
    ++state_.step;
    if (state_.step == 1) {
      state_.first_loss = engine_->step_loss().mean;
    }
    state_.sample_position = loader_->position();
    state_.tokens += session_.tokens_per_step();
    ++steps_done_;
    if (logs) {
      records_.require_lock(*comm_);
      step_log_.write(*engine_, state_, sent_);
    }
    if (logs || state_.step % kLossHistory == 0) {
      check_divergence();
    }
  }

  Batch next_batch() {
    const SectionScope section(Section::data);
    return loader_->next();
  }

  void observe_step(bool ends) {
    if (step_observer != nullptr) {
      step_observer(*engine_, mesh_.world_rank(), state_.step + 1, ends);
    }
  }

  void check_divergence() {
    std::optional<Loader> again;
    watch_.check(*engine_, *comm_, state_, [&] {
      if (!again) {
        again.emplace(session_.data.train, loader_settings());
        again->seek(step_begin_);
      }
      return again->next();
    });
  }

  /// Ends the run where it cannot.
  void go_back(const DivergenceError& divergence) {
    const SectionScope section(Section::start_up);  // a checkpoint is read
    const std::filesystem::path checkpoints = records_.directory().checkpoints();
    checkpoints_.finish();
    records_.require_lock(*comm_);
    if (settings().training.on_divergence != OnDivergence::rollback) {
      end_diverged(divergence, checkpoints, *comm_);
    }
    const ResumedRun back = roll_back(divergence, checkpoints, *engine_, session_, state_, *comm_);
    checkpoints_.went_back_to(back.state.step);
    begin_at(back.state);
    records_.write_rollbacks(state_.rollbacks, state_.step);
    listener_->went_back(divergence, state_, settings().training.max_rollbacks);
  }

  void evaluate_in_between() {
    const int64_t ranks = mesh_.size(Axis::data);
    evaluate(ceil_div(settings().eval.batches, ranks), false);
  }

  /// Evaluates and records the loss. Returns false, and records nothing, if a stop was requested
  /// meanwhile.
  bool evaluate(int64_t max_batches, bool final) {
    const SectionScope section(Section::evaluation);
    const Stopwatch watch;
    const std::optional<LossReport> validated = validation_loss(max_batches);
    if (!validated) {
      return false;
    }
    const LossReport& loss = *validated;
    const bool better = state_.best_val_step == 0 || loss.mean < state_.best_val_loss;
    if (std::isfinite(loss.mean) && better) {
      state_.best_val_loss = loss.mean;
      state_.best_val_step = state_.step;
    }
    state_.val_loss = loss.mean;
    state_.val_step = state_.step;
    listener_->validated(state_.step, loss, final, session_.engine.counts_targets);
    records_.write_validation(state_.step, loss, session_.engine.model.moe.experts > 0);
    step_log_.leave_out(watch.seconds());
    return true;
  }

  /// Returns the loss over the first `max_batches` batches of each rank (0: all), or nothing if a
  /// stop was requested meanwhile.
  std::optional<LossReport> validation_loss(int64_t max_batches) {
    ValidationBatches batches(
        session_.data.val, session_.engine.step.micro_batch_size, session_.engine.step.seq_length,
        {.data_rank = mesh_.index(Axis::data), .data_ranks = mesh_.size(Axis::data)});
    engine_->begin_evaluation();
    for (int64_t done = 0; max_batches == 0 || done < max_batches; ++done) {
      const std::optional<Batch> batch = batches.next();
      if (!batch) {
        break;
      }
      const bool stops = stop_signal() != 0;
      if (engine_->passes_are_collective() ? comm_->any_rank(stops) : stops) {
        break;
      }
      engine_->evaluate(*batch);
      section_advances();
    }
    const LossReport loss = engine_->evaluation_loss();  // ends the messages of stages too
    return comm_->any_rank(stop_signal() != 0) ? std::nullopt : std::optional(loss);
  }

  void sample() {
    const SectionScope section(Section::sample);
    const Stopwatch watch;
    Heartbeat heartbeat(*comm_);
    const bool alone = !engine_->passes_are_collective();
    if (generator_ != nullptr) {
      generator_->set_plain(engine_->plain());
      const std::string text =
          sample_texts(*generator_, *session_.tokenizer, settings().sample, settings().step.seed,
                       [&] { return alone ? heartbeat.beat() : void(); });
      if (leads()) {
        records_.write_sample(state_.step, text);
      }
      listener_->sampled(state_.step, text);
    }
    heartbeat.end();
    step_log_.leave_out(watch.seconds());
  }

  void check_replicas() {
    const Stopwatch watch;
    checkpoints_.check_replicas(*engine_, state_);
    step_log_.leave_out(watch.seconds());
  }

  void look_after_checkpoints() {
    const Stopwatch watch;
    if (checkpoints_.advance(state_)) {
      watch_.take_losses(*engine_, state_);
      checkpoints_.try_last_time(*engine_, state_);
    }
    if (checkpoints_.is_due(state_.step) && state_.step < session_.max_steps) {
      if (!watch_.has_checked(state_.step)) {
        check_divergence();
      }
      checkpoints_.save_if_good(*engine_, state_);
    }
    step_log_.leave_out(watch.seconds());
  }

  /// Returns "" for none. If one rank has a reason, all stop.
  std::string reason_to_stop() const {
    const double limit = settings().training.max_time_seconds;
    const int late = limit > 0 && since_start_.seconds() >= limit ? 1 : 0;
    const std::vector<int> all = comm_->all_gather_values(stop_signal() != 0 ? 2 : late);
    const int reason = *std::max_element(all.begin(), all.end());
    return reason == 2 ? "signal" : reason == 1 ? "training.max_time" : "";
  }

  StepPlan plan_of_stage() const {
    return dry_run_step(session_.engine, *device_, comm_->topology(), comm_->rank()).plan;
  }

  void make_engine(const StepPlan& plan) {
    engine_ = std::make_unique<Engine>(*device_, session_.engine, comm_);
    engine_->reserve(plan);
  }

  void make_generator() {
    if (session_.engine.samples) {
      generator_ = std::static_pointer_cast<Generator>(session_.engine.samples(*engine_));
    }
  }

  /// Reports where steps in bf16 begin and end, and changes the engine for another scaled plan.
  void enter_stage_of_step() {
    const bool was_plain = session_.engine.is_plain(state_.step - 1);
    if (session_.stages[session_.stage_after(state_.step)].plan.name != session_.engine.plan.name) {
      begin_stage();
    }
    if (state_.step > 0 && session_.engine.is_plain(state_.step) != was_plain) {
      listener_->changed_plan(state_.step, session_.engine.plan, was_plain, false);
    }
  }

  void enter_stage(size_t stage) {
    generator_.reset();
    engine_.reset();
    session_.enter_stage(stage);
    make_engine(plan_of_stage());
  }

  /// Another scaled plan: its engine resumes from the checkpoint of this step, as a run does that
  /// is stopped here, so that both have the same bits.
  void begin_stage() {
    const SectionScope section(Section::start_up);
    watch_.take_losses(*engine_, state_);
    checkpoints_.save_last(*engine_, state_);
    enter_stage(session_.stage_after(state_.step));
    const ResumedRun saved =
        load_checkpoint(checkpoint_of_step(records_.directory().checkpoints(), state_.step),
                        *engine_, session_, *comm_);
    begin_at(saved.state);
    make_generator();
    listener_->changed_plan(state_.step, session_.engine.plan, true, true);
    step_log_.restart_time();
  }

  RunOutcome stop(const std::string& reason) {
    watch_.take_losses(*engine_, state_);
    checkpoints_.save_last(*engine_, state_);
    listener_->stopped(state_.step, reason);
    return RunOutcome::stopped;
  }

  RunOutcome finish() {
    listener_->did_all_steps();
    check_data_at_end(session_);
    step_log_.warn_at_end();
    checkpoints_.end(*engine_, state_, settings().checkpoint.save_final);
    // A run that died between its last checkpoint and here has this evaluation already.
    if (session_.data.val.size() > 1 && state_.val_step != state_.step && !evaluate(0, true)) {
      // Exit code 75 promises a checkpoint, also without save_final.
      checkpoints_.save_last(*engine_, state_);
      return RunOutcome::stopped;
    }
    const double seconds = since_start_.seconds();
    records_.write_summary(summary(seconds));
    listener_->finished(state_, session_, steps_done_, seconds);
    return RunOutcome::finished;
  }

  /// `seconds`: since the last start, evaluations and saves included.
  nlohmann::ordered_json summary(double seconds) const {
    const SaveTotals& saves = checkpoints_.totals();
    nlohmann::ordered_json all = {{"plan", session_.engine.plan.name},
                                  {"parameters", parameter_count(session_.engine.model)},
                                  {"steps", state_.step},
                                  {"tokens", state_.tokens},
                                  {"loss", state_.loss}};
    if (state_.val_step > 0) {
      all.update({{"val_loss", state_.val_loss},
                  {"best_val_loss", state_.best_val_loss},
                  {"best_val_step", state_.best_val_step}});
    }
    all.update({{"last_start",
                 {{"steps", steps_done_},
                  {"tokens", steps_done_ * session_.tokens_per_step()},
                  {"seconds", seconds}}},
                {"tokens_per_second", step_log_.tokens_per_second()},
                {"peak_memory_bytes", device_->ledger().peak()},
                {"skipped_steps", engine_->optimizer().control().skipped_steps},
                {"rollbacks", state_.rollbacks.size()},
                {"saves", saves.saved},
                {"failed_saves", saves.failed},
                {"save_stall_seconds", saves.stall_seconds},
                {"save_write_seconds", saves.write_seconds}});
    return all;
  }

  Communicator* comm_;
  Mesh mesh_;
  Stopwatch since_start_;
  Session session_;
  RunRecords records_;
  Device* device_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Loader> loader_;
  std::shared_ptr<Generator> generator_;
  DivergenceWatch watch_;
  RunCheckpoints checkpoints_;
  RunListener* listener_;
  StepLog step_log_;
  TrainingState state_;
  std::string resolved_config_, earlier_config_;
  bool nothing_to_do_ = false;  // all steps had been done before this start
  int64_t steps_done_ = 0;  // steps that this start of the run has done; repeated steps count again
  uint64_t step_begin_ = 0;  // the loader's position before the last step
  Traffic sent_;             // in the last step
};

RunOutcome train_on_ranks(const RunRequest& request, Communicator& comm) {
  bool reported = false;
  const auto with_report = [&](const std::function<RunOutcome()>& body) {
    try {
      return body();
    } catch (const TimeoutError& error) {
      if (request.watchdog == nullptr || std::exchange(reported, true)) {
        throw;
      }
      throw TimeoutError(request.watchdog->report_failed_wait(error.what()));
    }
  };
  return with_report([&] {
    agree_on_run(comm, {request.resolved_yaml, request.version});  // before they go separate ways
    RunOutcome outcome = RunOutcome::finished;
    {
      RankDevice rank_device = take_device(request.settings, comm);
      Communicator& ranks = rank_device.comm != nullptr ? *rank_device.comm : comm;
      const auto watch_ranks = [&](Communicator* watched) {
        if (request.watchdog != nullptr) {
          request.watchdog->watch_ranks(watched);
        }
      };
      watch_ranks(&ranks);
      const OnExit unwatch([&] { watch_ranks(nullptr); });
      Run run(start_run(request, ranks, rank_device), request, ranks);
      const OnExit end([] {
        if (FlightRecorder* const recorder = flight_recorder()) {
          recorder->enter(Section::end);
        }
      });
      try {
        outcome = with_report([&] { return run.run(); });
      } catch (...) {
        // The next call waits for the thread that writes a checkpoint.
        run.release_lock();
        if (request.end_other_ranks) {
          request.end_other_ranks();
        }
        run.publish_save_in_flight();
        throw;
      }
    }
    wait_for_first_rank(comm);  // and all others: a rank that hangs at its end is seen by all
    return outcome;
  });
}

}  // namespace

void set_step_observer(StepObserver observer) {
  step_observer = observer;
}

RunOutcome train(const RunRequest& request, Communicator& comm) {
  return with_locations(request.settings, [&] { return train_on_ranks(request, comm); });
}

}  // namespace fp8train
