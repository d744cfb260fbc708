#include "train/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/error_prefix.h"
#include "base/flight_recorder.h"
#include "base/log.h"
#include "base/signals.h"
#include "config/changes.h"
#include "config/show.h"
#include "device/device_questions.h"
#include "optim/schedule.h"
#include "train/checkpoint/data_checks.h"
#include "train/checkpoint/resume_checks.h"
#include "train/checkpoint/rollback.h"
#include "train/inference/validation.h"
#include "train/preflight.h"
#include "train/ranks.h"
#include "train/records/environment.h"
#include "train/step/dry_run.h"
#include "train/threads.h"

namespace fp8train {
namespace {

StepObserver step_observer = nullptr;

}  // namespace

void set_step_observer(StepObserver observer) {
  step_observer = observer;
}

Run::Run(const RunRequest& request, Communicator& comm, RankDevice& rank_device)
    : comm_(&comm),
      mesh_(&comm),
      session_(open_session(request.settings, true, mesh_.size(Axis::data))),
      records_(request.settings.output_dir, leads()),
      device_(rank_device.device.get()),
      watch_(settings().training, session_.engine.plan.dynamic_loss_scaling),
      checkpoints_(records_.directory().checkpoints(), session_, watch_.skips(), records_, comm),
      progress_(request.quiet || !leads() ? Progress::Style::quiet
                                          : progress_style(request.settings.logging.format, stdout),
                stdout, records_.progress_log()),
      step_log_(session_, *device_, records_, progress_) {
  section_advances();
  agree_on_run(comm, request.resolved_yaml + request.version + session_.data.train.fingerprint());
  check_shared_folder(comm, records_.directory().root);
  threads_ = configure_threads(settings().threads, ranks_on_these_cores(comm));
  resolved_config_ = show_settings(session_.settings, true);  // with the steps of warm-up
  earlier_config_ = earlier_config(records_.directory());
  if (leads()) {
    open_log_file(records_.directory().log().string());
  } else {
    set_log_level(LogLevel::error);
  }
  if (!records_.lock_warning().empty()) {
    log_warning(records_.lock_warning());
  }
  log_notes(session_, true);
  const FoundStart found =
      find_start(session_, records_.directory().checkpoints(), comm, Verify::sizes);
  session_.enter_stage(session_.stage_after(found.step));
  const DryRunStep dry_run = largest_stage(session_, [&](const EngineSettings& engine) {
    return dry_run_step(engine, *device_, comm.topology(), comm.rank());
  });
  if (comm.size() > 1) {
    progress_.say(fmt::format("ranks   {}; {}{}", comm.description(),
                              describe_layout(session_, comm.topology()),
                              rank_device.note.empty() ? "" : "; " + rank_device.note));
  }
  const RankMemory memory = memory_here(*device_, comm.local_size());
  for (const std::string& line : run_overview(
           session_, memory, device_lines(*device_, rank_device.reason, threads_), found.step)) {
    progress_.say(line);
  }
  const bool by_category = earlier_config_.empty() || request.verbose;
  for (const std::string& line : memory_overview(session_, memory.is_host, dry_run, by_category)) {
    progress_.say(line);
  }
  check_fits(memory, memory_of_run(dry_run, memory.is_host));
  if (leads()) {
    progress_.say(begin_data_record(session_, records_.directory().data_hashes()));
  }
  make_engine(session_.stages.size() == 1 ? dry_run.plan : plan_of_stage());
  loader_ = std::make_unique<Loader>(session_.data.train, loader_settings());
  start(request, found);
  make_generator();
}

/// Loads the start, or an older one where a file of it turns out to be damaged on any rank.
RunStart Run::load_newest(FoundStart& found) {
  const std::filesystem::path checkpoints = records_.directory().checkpoints();
  while (true) {
    try {
      RunStart start = load_start(session_, found, *engine_, *device_, *comm_);
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
      progress_.say(plan_line(session_, memory_here(*device_, comm_->local_size()), found.step));
    }
  }
}

void Run::start(const RunRequest& request, FoundStart found) {
  const RunStart start = load_newest(found);
  if (!start.line.empty()) {
    progress_.say(start.line);
  }
  log_warnings(start.warnings);
  if (found.checkpoint) {
    say_changes(found.checkpoint->parent_path().parent_path(), start.changes);
  }
  begin_at(start.state);
  checkpoints_.begin(*engine_, state_, found.checkpoint);
  // Without a summary, the run ended between its last step and the evaluation that follows it.
  const bool finished =
      state_.step > session_.max_steps || (state_.step == session_.max_steps &&
                                           std::filesystem::exists(records_.directory().summary()));
  nothing_to_do_ = first_rank_says(*comm_, finished);  // folders may look older on other nodes
  // Only now: a run that was refused leaves the records of the one before as they are.
  if (leads() && !nothing_to_do_) {
    describe_run(
        records_.directory(), resolved_config_, request.command,
        describe_environment(request.version, request.command, comm_->size(), threads_, *device_));
  }
}

/// The engine has the weights and all else of this state.
void Run::begin_at(const TrainingState& state) {
  state_ = state;
  share_weights(*comm_, *device_, engine_->model().parameters());
  engine_->weights_changed();
  watch_.begin_at(state_, *engine_);
  engine_->enter_step(state_.step - 1);
  loader_->seek(state_.sample_position);
  records_.begin_metrics(state_.step, settings().logging.interval);
  step_log_.begin_at(state_.step);
}

/// What the run that saved the checkpoint was set to otherwise: not an error, but never silent.
/// `changes`: what the checkpoint itself says, which may be another run's than the folder.
void Run::say_changes(const std::filesystem::path& saved_run, std::vector<std::string> changes) {
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
    progress_.say("  changed since then: " + change);
  }
}

Batch Run::next_batch() {
  const SectionScope section(Section::data);
  return loader_->next();
}

void Run::observe_step(bool ends) {
  if (step_observer != nullptr) {
    step_observer(*engine_, mesh_.world_rank(), state_.step + 1, ends);
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

void Run::check_divergence() {
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
void Run::go_back(const DivergenceError& divergence) {
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
  log_warning(fmt::format("{}; {}", divergence.what(),
                          describe(state_.rollbacks.back(), state_.rollbacks.size(),
                                   settings().training.max_rollbacks)));
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
  const char* const all = session_.engine.counts_targets ? "all documents of the" : "the whole";
  progress_.say(fmt::format("step {}: val loss {:.4f} over {} tokens{}", state_.step, loss.mean,
                            loss.targets, final ? fmt::format(" ({} validation split)", all) : ""));
  records_.write_validation(state_.step, loss.mean, loss.targets);
  step_log_.leave_out(watch.seconds());
  return true;
}

void Run::sample() {
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
    progress_.say(fmt::format("sample at step {}:\n{}", state_.step, text));
  }
  heartbeat.end();
  step_log_.leave_out(watch.seconds());
}

void Run::check_replicas() {
  const Stopwatch watch;
  checkpoints_.check_replicas(*engine_, state_);
  step_log_.leave_out(watch.seconds());
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
  step_log_.leave_out(watch.seconds());
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
  if (nothing_to_do_) {
    say_nothing_to_do();
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

void Run::publish_save_in_flight() noexcept {
  if (comm_->size() > 1) {
    return;
  }
  try {
    checkpoints_.finish();
  } catch (const std::exception& error) {
    log_warning(fmt::format("the save in flight has failed: {}", error.what()));
  }
}

RunOutcome Run::train_to_end() {
  if (settings().logging.tensorboard) {
    records_.begin_events(state_.step, resolved_config_);
  }
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
    progress_.tick(state_.step, session_.max_steps);
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

}  // namespace fp8train
