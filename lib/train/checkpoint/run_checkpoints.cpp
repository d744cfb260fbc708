#include "train/checkpoint/run_checkpoints.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "base/flight_recorder.h"
#include "config/settings.h"
#include "device/device_questions.h"
#include "train/checkpoint/replicas.h"
#include "train/watch/divergence.h"

namespace fp8train {
namespace {

CheckpointRetention retention_of(const std::filesystem::path& root,
                                 const CheckpointSettings& settings) {
  return {root,
          {.keep_last = settings.keep_last,
           .keep_every = settings.keep_every,
           .keep_best = settings.keep_best},
          evaluated_loss,
          is_scheduled};
}

double mtbf_of(const Session& session, int ranks) {
  const double given = session.settings.job.mtbf_seconds;
  return given > 0 ? given : assumed_mtbf(ranks);
}

/// Steps before the first automatic save, which shows what one costs.
constexpr int64_t kFirst = 10;

}  // namespace

RunCheckpoints::RunCheckpoints(const std::filesystem::path& root, const Session& session,
                               const SkipGuard& skips, RunRecords& records, Communicator& comm,
                               RunListener& listener)
    : root_(root),
      session_(&session),
      skips_(&skips),
      records_(&records),
      comm_(&comm),
      listener_(&listener),
      saver_(root, session.settings.checkpoint.async,
             retention_of(root, session.settings.checkpoint), comm,
             [&records] { return records.has_lost_lock(); }),
      interval_(session.settings.checkpoint.interval, mtbf_of(session, comm.size())) {}

void RunCheckpoints::begin(Engine& engine, const TrainingState& state,
                           const std::optional<std::filesystem::path>& resumed) {
  if (resumed && std::filesystem::weakly_canonical(resumed->parent_path()) ==
                     std::filesystem::weakly_canonical(root_)) {
    saved_step_ = state.step;
    saver_.mark_verified(state.step);
  }
  if (session_->settings.checkpoint.interval != 0) {
    saver_.reserve(
        [&](StateCopy& copy) { copy_training_state(engine, *session_, state, *comm_, copy); });
    charge_copy(engine);
  }
  interval_.begin(state.step);
  is_due_ = state.save_is_due;
  first_step_ = state.step;
  last_step_ = state.step;
  since_begin_.restart();
}

void RunCheckpoints::went_back_to(int64_t step) {
  saved_step_ = step;
  compared_step_ = kNone;
  is_due_ = false;
  saver_.mark_verified(step);
  interval_.begin(step);
  first_step_ = step - (last_step_ - first_step_);  // steps done so far, for their mean time
  last_step_ = step;
}

bool RunCheckpoints::advance(const TrainingState& state) {
  last_step_ = state.step;
  const SectionScope section(Section::save);
  if (const std::optional<SaveResult> result = saver_.advance()) {
    end_save(*result);
  }
  return has_failed_too_often();
}

void RunCheckpoints::try_last_time(Engine& engine, const TrainingState& state) {
  start(engine, state, false);
  finish();
  if (failed_in_a_row_ > 0) {
    give_up();
  }
}

void RunCheckpoints::save_if_good(Engine& engine, const TrainingState& state) {
  const bool loss_is_finite = std::isfinite(engine.step_loss().mean);
  const ops::StepControl control = engine.optimizer().control();
  const bool loss_is_high = state.spikes.high_steps > 0;
  if (loss_is_finite && !loss_is_high && !was_skipped(control)) {
    is_due_ = false;
    save(engine, state);
    return;
  }
  skips_->check_row(control, state.step);
  if (!is_due_) {
    using Reason = UnsavedStep::Reason;
    listener_->put_off_save({.step = state.step,
                             .reason = !loss_is_finite        ? Reason::loss_not_finite
                                       : was_skipped(control) ? Reason::gradient_not_finite
                                                              : Reason::high_loss,
                             .other_step = saved_step_});
  }
  is_due_ = true;
}

void RunCheckpoints::save_last(Engine& engine, const TrainingState& state) {
  finish();
  for (int attempt = 0; attempt < 2 && saved_step_ != state.step; ++attempt) {
    const bool is_on_time = !interval_.exists() || interval_.is_due(state.step);
    start(engine, state, is_on_time && is_good(engine, state));
    finish();
  }
  if (saved_step_ != state.step) {
    give_up();
  }
}

void RunCheckpoints::end(Engine& engine, const TrainingState& state, bool saves) {
  finish();
  check_last_step(engine, state);
  if (saves || failed_in_a_row_ > 0) {
    save_last(engine, state);
  }
}

void RunCheckpoints::check_last_step(Engine& engine, const TrainingState& state) const {
  const ops::StepControl control = engine.optimizer().control();
  if (was_skipped(control)) {
    throw only_skipped(control, state.step, skips_->first_tensor());
  }
  if (!std::isfinite(state.loss)) {
    throw DivergenceError(
        fmt::format("the loss of step {}, the last one, is not finite: training has diverged; "
                    "lower optimizer.lr",
                    state.step),
        DivergenceKind::non_finite_loss, state.step);
  }
}

void RunCheckpoints::check_replicas(Engine& engine, const TrainingState& state) {
  const bool wanted = session_->settings.parallelism.check_replicas > 0 && comm_->size() > 1;
  if (!wanted || compared_step_ == state.step) {
    return;
  }
  const std::vector<ReplicaHash> hashes = hash_replicas(engine);
  try {
    compare_replicas(engine.mesh(), hashes, state.step);
  } catch (const DeviceError&) {  // on all ranks
    finish();                     // the save in flight is of a step in which they were the same
    throw;
  }
  compared_step_ = state.step;
}

void RunCheckpoints::save(Engine& engine, const TrainingState& state) {
  if (saver_.in_flight() && !has_waited_) {
    has_waited_ = true;
    listener_->put_off_save({.step = state.step,
                             .reason = UnsavedStep::Reason::earlier_save,
                             .other_step = saver_.step()});
  }
  finish();
  if (saved_step_ == state.step) {
    return;
  }
  if (has_failed_too_often()) {
    try_last_time(engine, state);
    return;
  }
  start(engine, state, true);
  if (!session_->settings.checkpoint.async) {
    finish();
  }
}

/// Begins a save. `is_scheduled`: that of TrainingState.
void RunCheckpoints::start(Engine& engine, TrainingState state, bool is_scheduled) {
  records_->require_lock(*comm_);
  check_replicas(engine, state);
  const SectionScope section(Section::save);
  records_->sync();
  state.is_scheduled = is_scheduled;
  state.save_is_due = is_due_;
  try {
    saver_.start(
        [&](StateCopy& copy) { copy_training_state(engine, *session_, state, *comm_, copy); },
        is_good(engine, state));
  } catch (const NumericError& error) {
    throw DivergenceError(error.what(), DivergenceKind::non_finite_weight, state.step);
  }
  charge_copy(engine);
}

/// Counts the copy as memory of the run where the device is the host.
void RunCheckpoints::charge_copy(Engine& engine) {
  if (is_host(engine.device()) && saver_.copy_bytes() > charged_bytes_) {
    engine.device().ledger().add(MemoryCategory::state_copy, saver_.copy_bytes() - charged_bytes_);
    charged_bytes_ = saver_.copy_bytes();
  }
}

void RunCheckpoints::finish() {
  const SectionScope section(Section::save);
  if (const std::optional<SaveResult> result = saver_.finish()) {
    end_save(*result);
  }
}

void RunCheckpoints::end_save(const SaveResult& result) {
  totals_.stall_seconds += result.stall_seconds;
  totals_.write_seconds += result.write_seconds;
  if (result.saved) {
    ++totals_.saved;
    saved_step_ = result.step;
    failed_in_a_row_ = 0;
    agree_on_interval(result);
  } else {
    ++totals_.failed;
    ++failed_in_a_row_;
    last_failure_ = result.failure;
    interval_.failed(result.step);
    listener_->put_off_save({.step = result.step,
                             .other_step = saved_step_,
                             .failure = result.failure,
                             .failures = failed_in_a_row_,
                             .max_failures = session_->settings.checkpoint.max_failed_saves});
  }
  records_->write_save(result, failed_in_a_row_);
}

/// Counts a save for the automatic interval, with the first rank's times on all ranks.
void RunCheckpoints::agree_on_interval(const SaveResult& result) {
  if (!interval_.is_automatic()) {
    return;
  }
  const auto steps = static_cast<double>(std::max<int64_t>(last_step_ - first_step_, 1));
  const double training = since_begin_.seconds() - totals_.stall_seconds;
  const SaveInterval::Cost mine = {.stall_seconds = result.stall_seconds,
                                   .write_seconds = result.write_seconds,
                                   .step_seconds = std::max(training, 0.0) / steps};
  interval_.saved(result.step, comm_->all_gather_values(mine).front());
  if (const auto change = interval_.take_change()) {
    listener_->found_interval(*change);
  }
}

void RunCheckpoints::give_up() const {
  throw DeviceError(fmt::format("{} save{} in a row failed, the last one of step {}: {}. {}",
                                failed_in_a_row_, failed_in_a_row_ == 1 ? "" : "s", saver_.step(),
                                last_failure_, intact_checkpoint(saved_step_)));
}

std::string intact_checkpoint(int64_t step) {
  return step > 0 ? fmt::format("The checkpoint of step {} is intact", step)
                  : std::string("Nothing had been saved yet");
}

double best_save_seconds(double cost, double mtbf) {
  if (cost >= 2 * mtbf) {
    return mtbf;
  }
  const double part = cost / (2 * mtbf);
  return std::sqrt(2 * cost * mtbf) * (1 + std::sqrt(part) / 3 + part / 9) - cost;
}

double assumed_mtbf(int ranks) {
  constexpr double kRankSeconds = 9000.0 * 3600;
  return kRankSeconds / std::max(ranks, 1);
}

bool SaveInterval::is_automatic() const {
  return steps_ == kAutomaticInterval;
}

void SaveInterval::begin(int64_t step) {
  next_ = step + kFirst;
}

bool SaveInterval::is_due(int64_t step) const {
  return is_automatic() ? step >= next_ : steps_ > 0 && step % steps_ == 0;
}

void SaveInterval::saved(int64_t step, const Cost& cost) {
  // The last save counts half, all that were before it the other half.
  const double weight = found_ == 0 ? 1 : 0.5;
  cost_ = {.stall_seconds = weight * cost.stall_seconds + (1 - weight) * cost_.stall_seconds,
           .write_seconds = weight * cost.write_seconds + (1 - weight) * cost_.write_seconds,
           .step_seconds = cost.step_seconds};
  const double step_seconds = std::max(cost.step_seconds, 1e-9);
  const double best = best_save_seconds(std::max(cost_.stall_seconds, 1e-6), mtbf_);
  // A save that begins before the one before it is written would wait.
  const double seconds = std::max(best, cost_.write_seconds);
  constexpr double kMost = 1e15;
  found_ = static_cast<int64_t>(std::clamp(std::ceil(seconds / step_seconds), 1.0, kMost));
  next_ = step + found_;
}

void SaveInterval::failed(int64_t step) {
  next_ = step + (found_ > 0 ? found_ : kFirst);
}

std::optional<FoundInterval> SaveInterval::take_change() {
  const bool is_news = reported_ == 0 || found_ * 5 > reported_ * 6 || found_ * 5 < reported_ * 4;
  if (!is_automatic() || found_ == 0 || !is_news) {
    return {};
  }
  reported_ = found_;
  const double seconds = static_cast<double>(found_) * cost_.step_seconds;
  return FoundInterval{.steps = found_,
                       .seconds = seconds,
                       .stall = cost_.stall_seconds,
                       .write = cost_.write_seconds,
                       .mtbf = mtbf_,
                       .lost_part = cost_.stall_seconds / seconds + seconds / (2 * mtbf_)};
}

}  // namespace fp8train
