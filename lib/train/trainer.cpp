#include "train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/flight_recorder.h"
#include "base/log.h"
#include "base/signals.h"
#include "config/changes.h"
#include "data/loader.h"
#include "io/checkpoint.h"
#include "optim/schedule.h"
#include "train/divergence.h"
#include "train/divergence_watch.h"
#include "train/generator.h"
#include "train/place.h"
#include "train/preflight.h"
#include "train/progress.h"
#include "train/ranks.h"
#include "train/resume_checks.h"
#include "train/rollback.h"
#include "train/run_checkpoints.h"
#include "train/run_records.h"
#include "train/run_statistics.h"
#include "train/run_watchdog.h"
#include "train/session.h"
#include "train/threads.h"
#include "train/training_state.h"
#include "train/validation.h"
#include "train/weights.h"

namespace fp8train {
namespace {

StepObserver step_observer = nullptr;

class Run {
 public:
  Run(const RunRequest& request, Communicator& comm, RankPlace& place);
  RunOutcome run();

 private:
  void start_or_resume();
  void begin_at(const TrainingState& state);
  void say_changes(const std::filesystem::path& saved_run);
  Batch next_batch();
  void observe_step(bool ends);
  void train_one_step();
  void log_step();
  void check_divergence();
  void go_back(const DivergenceError& divergence);
  RunOutcome train_to_end();
  /// False when a stop was asked for meanwhile; nothing is recorded then.
  bool evaluate(int64_t max_batches, bool final);
  void sample();
  void check_replicas();
  void look_after_checkpoints();
  std::string reason_to_stop() const;
  RunOutcome stop(const std::string& reason);
  RunOutcome finish();

  int64_t sample_capacity() const {
    return longest_prompt(settings().sample, *session_.tokenizer) +
           settings().sample.max_new_tokens;
  }
  LoaderSettings loader_settings() const {
    return {.micro_batch_size = session_.engine.micro_batch_size,
            .seq_length = session_.engine.seq_length,
            .shuffle = settings().data.shuffle,
            .seed = settings().training.seed,
            .rank = comm_->rank(),
            .world_size = comm_->size()};
  }
  bool due(int64_t interval) const { return interval > 0 && state_.step % interval == 0; }
  bool evaluation_is_due() const {
    return due(settings().eval.interval) && session_.data.val.size() > 1 &&
           state_.step < session_.max_steps;
  }
  void evaluate_in_between() {
    evaluate((settings().eval.batches + comm_->size() - 1) / comm_->size(), false);
  }
  const Settings& settings() const { return session_.settings; }
  bool leads() const { return comm_->rank() == 0; }

  Communicator* comm_;
  Session session_;
  RunRecords records_;
  Device* device_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<Generator> generator_;
  ScalingWarnings scaling_warnings_;
  DivergenceWatch watch_;
  RunCheckpoints checkpoints_;
  Progress progress_;
  TrainingState state_;
  std::string resolved_config_, earlier_config_;
  Stopwatch since_start_;
  Stopwatch since_log_;
  double excluded_seconds_ = 0;  // evaluation, samples and saving since the last log line
  int64_t logged_step_ = 0;
  uint64_t step_begin_ = 0;  // the loader's position before the last step
  double speed_ = 0;
  Traffic sent_;  // in the last step
};

Run::Run(const RunRequest& request, Communicator& comm, RankPlace& place)
    : comm_(&comm),
      session_(open_session(request.settings, true, comm.size())),
      records_(request.settings.output_dir, comm.rank() == 0),
      device_(place.device.get()),
      watch_(settings().training, session_.engine.plan.dynamic_loss_scaling),
      checkpoints_(records_.directory().checkpoints(), session_, watch_.skips(), records_, comm),
      progress_(request.quiet || comm.rank() != 0
                    ? Progress::Style::quiet
                    : progress_style(request.settings.logging.format, stdout),
                stdout, records_.progress_log()) {
  section_advances();
  agree_on_run(comm, request.resolved_yaml + request.version + session_.data.train.fingerprint());
  check_shared_folder(comm, records_.directory().root);
  const int64_t threads = configure_threads(settings().threads, ranks_on_these_cores(comm));
  resolved_config_ = request.resolved_yaml;
  earlier_config_ = earlier_config(records_.directory());
  if (leads()) {
    open_log_file(records_.directory().log().string());
  } else {
    set_log_level(LogLevel::error);
  }
  if (!records_.lock_warning().empty()) {
    log_warning(records_.lock_warning());
  }
  log_notes(session_);
  const RehearsedStep rehearsed =
      rehearse_step(session_.engine, *device_, comm.topology(), comm.rank());
  if (comm.size() > 1) {
    progress_.say(fmt::format("ranks   {}; {}{}", comm.description(), describe_layout(session_),
                              place.note.empty() ? "" : "; " + place.note));
  }
  for (const std::string& line :
       run_overview(session_, *device_, place.reason, threads, rehearsed)) {
    progress_.say(line);
  }
  const RankRoom room = room_here(*device_, comm.local_size());
  check_room(room, memory_of_run(rehearsed, room.is_host));
  if (leads()) {
    progress_.say(begin_data_record(session_, records_.directory().data_hashes()));
  }
  engine_ = std::make_unique<Engine>(*device_, session_.engine, &comm);
  engine_->reserve(rehearsed.plan);
  loader_ = std::make_unique<Loader>(session_.data.train, loader_settings());
  start_or_resume();
  // Only now: a run that was refused leaves the records of the one before as they are.
  if (leads()) {
    describe_run(records_.directory(), request.resolved_yaml, request.command,
                 JsonObject()
                     .add("ranks", comm.size())
                     .add("threads", threads)
                     .add("version", request.version));
  }
  if (settings().sample.interval > 0 && (leads() || engine_->passes_are_collective())) {
    generator_ = std::make_unique<Generator>(*device_, engine_->model(), sample_capacity(),
                                             engine_->gatherer());
  }
}

void Run::start_or_resume() {
  const std::string& resume = settings().checkpoint.resume;
  std::optional<ResumedRun> resumed;
  std::vector<std::string> notes;
  if (resume == "auto") {
    resumed = resume_newest(records_.directory().checkpoints(), *engine_, session_, notes, *comm_);
  } else if (resume != "never") {
    resumed = resume_from(resume, *engine_, session_, *comm_);
  } else if (!find_checkpoints(records_.directory().checkpoints()).empty()) {
    throw ConfigError(fmt::format(
        "checkpoint.resume is never, but {} holds checkpoints of an earlier run; choose another "
        "output_dir or remove that folder",
        records_.directory().checkpoints().string()));
  }
  log_warnings(notes);
  if (resumed) {
    progress_.say(
        fmt::format("resumed from {} at step {}", resumed->folder.string(), resumed->state.step));
    log_warnings(resumed->notes);
    say_changes(resumed->folder.parent_path().parent_path());
  } else if (!settings().model.from.empty()) {
    load_weights(*device_, engine_->model(), TensorSource(settings().model.from));
    progress_.say("weights from " + settings().model.from);
  } else {
    engine_->model().initialize(settings().training.seed);
  }
  const TrainingState state = resumed ? resumed->state : TrainingState();
  agree_on_step(*comm_, state.step, records_.directory().checkpoints());
  begin_at(state);
  engine_->enter_step(state.step - 1);
  checkpoints_.begin(*engine_, state_, resumed ? std::optional(resumed->folder) : std::nullopt);
}

/// The engine has the weights and all else of this state.
void Run::begin_at(const TrainingState& state) {
  state_ = state;
  share_weights(*comm_, *device_, engine_->model().parameters());
  engine_->weights_changed();
  watch_.begin_at(state_, *engine_);
  loader_->seek(state_.sample_position);
  records_.begin_metrics(state_.step);
  logged_step_ = state_.step;
}

/// What the run that saved the checkpoint was set to otherwise: not an error, but never silent.
void Run::say_changes(const std::filesystem::path& saved_run) {
  const bool own = std::filesystem::weakly_canonical(saved_run) ==
                   std::filesystem::weakly_canonical(records_.directory().root);
  const std::string before = own ? earlier_config_ : earlier_config({saved_run});
  if (before.empty()) {
    return;
  }
  for (const std::string& change : changed_settings(before, resolved_config_)) {
    progress_.say("  changed since then: " + change);
  }
}

Batch Run::next_batch() {
  const SectionScope section(Section::data);
  return loader_->next();
}

void Run::observe_step(bool ends) {
  if (step_observer != nullptr) {
    step_observer(*engine_, comm_->rank(), state_.step + 1, ends);
  }
}

void Run::train_one_step() {
  if (FlightRecorder* const recorder = flight_recorder()) {
    recorder->begin_step(state_.step + 1);
  }
  check_data(session_);
  const bool last = state_.step + 1 == session_.max_steps;
  const bool logs = last || (state_.step + 1) % settings().logging.interval == 0;
  const double lr =
      learning_rate(settings().scheduler, settings().optimizer.lr, state_.step, session_.max_steps);
  const Traffic before = comm_->traffic();
  step_begin_ = loader_->position();
  observe_step(false);
  engine_->step([this] { return next_batch(); }, state_.step, lr, logs);
  observe_step(true);
  sent_ = {comm_->traffic().within_node - before.within_node,
           comm_->traffic().between_nodes - before.between_nodes};
  ++state_.step;
  state_.sample_position = loader_->position();
  state_.tokens += session_.tokens_per_step();
  if (logs) {
    log_step();
  }
  if (logs || state_.step % kLossHistory == 0) {
    check_divergence();
  }
}

void Run::check_divergence() {
  Loader again(session_.data.train, loader_settings());
  again.seek(step_begin_);
  watch_.check(
      *engine_, *comm_, state_, [this] { return checkpoints_.what_stays(); },
      [&again] { return again.next(); });
}

/// Throws the divergence where it cannot.
void Run::go_back(const DivergenceError& divergence) {
  const SectionScope section(Section::start_up);  // a checkpoint is read
  checkpoints_.finish();
  if (settings().training.on_divergence != "rollback") {
    throw divergence;
  }
  const ResumedRun back =
      roll_back(divergence, records_.directory().checkpoints(), *engine_, session_, state_, *comm_);
  checkpoints_.went_back_to(back.state.step);
  begin_at(back.state);
  records_.write_rollbacks(state_.rollbacks, state_.step);
  log_warning(fmt::format("{}; {}", divergence.what(),
                          describe(state_.rollbacks.back(), state_.rollbacks.size(),
                                   settings().training.max_rollbacks)));
}

void Run::log_step() {
  FlightRecorder* const recorder = flight_recorder();
  std::vector<SectionSeconds> seconds_of_ranks;
  const LossReport loss = engine_->step_loss(
      recorder != nullptr ? recorder->take_seconds() : SectionSeconds(), seconds_of_ranks);
  const StepReport report = engine_->optimizer().report();
  const double seconds = since_log_.seconds() - excluded_seconds_;
  const auto steps = static_cast<double>(state_.step - logged_step_);
  speed_ = steps * static_cast<double>(session_.tokens_per_step()) / seconds;
  state_.loss = loss.mean;
  std::vector<SlotReport> slots = engine_->model().scaling().report();
  // Nothing has been seen of weights of which only other ranks have parts.
  std::erase_if(slots, [](const SlotReport& slot) { return slot.statistics.count == 0; });
  const ScalingSummary scaling = summarize(slots);
  const double lr = learning_rate(settings().scheduler, settings().optimizer.lr, state_.step - 1,
                                  session_.max_steps);
  progress_.show({.step = state_.step,
                  .max_steps = session_.max_steps,
                  .loss = loss.mean,
                  .lr = lr,
                  .gradient_norm = report.gradient_norm,
                  .tokens_per_second = speed_,
                  .seconds_per_step = seconds / steps,
                  .memory_bytes = device_->ledger().peak(),
                  .skipped_steps = report.skipped_steps,
                  .has_scaling = !slots.empty(),
                  .saturated_percent = scaling.saturated_percent,
                  .underflow_percent = scaling.underflow_percent});
  records_.write_step({.step = state_.step,
                       .loss = loss.mean,
                       .lr = lr,
                       .gradient_norm = report.gradient_norm,
                       .tokens = state_.tokens,
                       .tokens_per_second = speed_,
                       .loss_scale = session_.engine.plan.dynamic_loss_scaling
                                         ? std::optional<double>(report.loss_scale)
                                         : std::nullopt,
                       .skipped_steps = report.skipped_steps,
                       .straggler = find_straggler(seconds_of_ranks),
                       .sent = comm_->size() > 1 ? std::optional<Traffic>(sent_) : std::nullopt,
                       .slots = &slots});
  log_warnings(scaling_warnings_.after_step(state_.step, slots));
  logged_step_ = state_.step;
  since_log_.restart();
  excluded_seconds_ = 0;
}

bool Run::evaluate(int64_t max_batches, bool final) {
  const SectionScope section(Section::evaluation);
  const Stopwatch watch;
  const std::optional<LossReport> validated =
      validation_loss(*engine_, session_.data.val, max_batches, *comm_);
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
  progress_.say(fmt::format("step {}: val loss {:.4f} over {} tokens{}", state_.step, loss.mean,
                            loss.targets, final ? " (the whole validation split)" : ""));
  records_.write_validation(state_.step, loss.mean, loss.targets);
  excluded_seconds_ += watch.seconds();
  return true;
}

void Run::sample() {
  const SectionScope section(Section::sample);
  const Stopwatch watch;
  if (generator_ != nullptr) {
    const std::string text =
        sample_texts(*generator_, *session_.tokenizer, settings().sample, settings().training.seed);
    if (leads()) {
      records_.write_sample(state_.step, text);
    }
    progress_.say(fmt::format("sample at step {}:\n{}", state_.step, text));
  }
  wait_for_first_rank(*comm_);
  excluded_seconds_ += watch.seconds();
}

void Run::check_replicas() {
  const Stopwatch watch;
  checkpoints_.check_replicas(*engine_, state_);
  excluded_seconds_ += watch.seconds();
}

void Run::look_after_checkpoints() {
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
  excluded_seconds_ += watch.seconds();
}

/// Where one rank has a reason, all stop: "" for none.
std::string Run::reason_to_stop() const {
  const double limit = settings().training.max_time_seconds;
  const int late = limit > 0 && since_start_.seconds() >= limit ? 1 : 0;
  const std::vector<int> all = comm_->all_gather_values(stop_signal() != 0 ? 2 : late);
  const int reason = *std::max_element(all.begin(), all.end());
  return reason == 2 ? "signal" : reason == 1 ? "training.max_time" : "";
}

RunOutcome Run::run() {
  const SectionScope section(Section::step);
  if (FlightRecorder* const recorder = flight_recorder()) {
    recorder->take_seconds();  // what happens before the first step makes no straggler
  }
  const bool finished =
      state_.step >= session_.max_steps && std::filesystem::exists(records_.directory().summary());
  if (first_rank_says(*comm_, finished)) {  // folders may look older on other nodes
    progress_.say(
        fmt::format("nothing to do: this run finished at step {}; raise training.max_steps to "
                    "train further. Everything is in {}",
                    state_.step, records_.directory().root.string()));
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

RunOutcome Run::train_to_end() {
  since_log_.restart();
  excluded_seconds_ = 0;
  if (state_.step > 0 && evaluation_is_due() && state_.val_step != state_.step) {
    evaluate_in_between();  // a stop had cut it short
  }
  while (state_.step < session_.max_steps) {
    if (const std::string reason = reason_to_stop(); !reason.empty()) {
      return stop(reason);
    }
    train_one_step();
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

RunOutcome Run::stop(const std::string& reason) {
  watch_.take_losses(*engine_, state_);
  checkpoints_.save_last(*engine_, state_);
  progress_.say(
      fmt::format("stopped at step {} ({}); {} holds everything: run the same command "
                  "to go on",
                  state_.step, reason, records_.directory().checkpoints().string()));
  return RunOutcome::stopped;
}

RunOutcome Run::finish() {
  progress_.finish();
  check_data_at_end(session_);
  log_warnings(scaling_warnings_.rest());
  if (settings().checkpoint.save_final) {
    checkpoints_.save_last(*engine_,
                           state_);  // first, so that nothing that follows can lose the training
  }
  checkpoints_.check_end(*engine_, state_);
  // A run that died between its last checkpoint and here has this evaluation already.
  if (session_.data.val.size() > 1 && state_.val_step != state_.step) {
    if (!evaluate(0, true)) {
      checkpoints_.save_last(
          *engine_, state_);  // exit code 75 promises a checkpoint, also without save_final
      return RunOutcome::stopped;
    }
  }
  const std::optional<double> val_loss =
      state_.val_step > 0 ? std::optional(state_.val_loss) : std::nullopt;
  const StepReport report = engine_->optimizer().report();
  records_.write_summary({.plan = session_.engine.plan.name,
                          .parameters = parameter_count(session_.engine.model),
                          .steps = state_.step,
                          .tokens = state_.tokens,
                          .loss = state_.loss,
                          .val_loss = val_loss,
                          .best_val_loss = state_.best_val_loss,
                          .best_val_step = state_.best_val_step,
                          .seconds = since_start_.seconds(),
                          .tokens_per_second = speed_,
                          .peak_memory_bytes = device_->ledger().peak(),
                          .skipped_steps = report.skipped_steps,
                          .saves = checkpoints_.totals(),
                          .rollbacks = static_cast<int64_t>(state_.rollbacks.size())});
  progress_.say(fmt::format("done: {} steps, {} tokens in {}; loss {:.4f}{}; everything is in {}",
                            state_.step, describe_count(static_cast<double>(state_.tokens)),
                            describe_duration(since_start_.seconds()), state_.loss,
                            val_loss ? fmt::format(", val loss {:.4f}", *val_loss) : "",
                            records_.directory().root.string()));
  return RunOutcome::finished;
}

}  // namespace

void set_step_observer(StepObserver observer) {
  step_observer = observer;
}

RunOutcome train(const RunRequest& request, Communicator& comm) {
  try {
    agree_on_run(comm, request.resolved_yaml + request.version);  // before they go separate ways
    RankPlace place = take_place(request.settings, comm);
    Communicator& ranks = place.comm != nullptr ? *place.comm : comm;
    const WatchedRanks watched(request.watchdog, ranks);
    Run run(request, ranks, place);
    const EndSection end;
    return run.run();
  } catch (const TimeoutError& error) {
    if (request.watchdog == nullptr) {
      throw;
    }
    throw TimeoutError(request.watchdog->report_failed_wait(error.what()));
  }
}

}  // namespace fp8train
