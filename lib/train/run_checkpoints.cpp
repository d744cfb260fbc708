#include "train/run_checkpoints.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/flight_recorder.h"
#include "base/log.h"
#include "train/replicas.h"

namespace fp8train {

void RunCheckpoints::save_if_good(Engine& engine, const TrainingState& state) {
  const bool loss_is_finite = std::isfinite(engine.step_loss().mean);
  const StepReport report = engine.optimizer().report();
  if (loss_is_finite && !was_skipped(report)) {
    is_due_ = false;
    save(engine, state, session_->settings.checkpoint.keep_last);
    return;
  }
  skips_->check_row(report, state.step, what_is_saved());
  if (!is_due_) {
    log_warning(
        fmt::format("step {} is not saved: its {} is not finite; the next step with finite values "
                    "will be saved. {}",
                    state.step, loss_is_finite ? "gradient" : "loss", what_is_saved()));
  }
  is_due_ = true;
}

void RunCheckpoints::save_last(Engine& engine, const TrainingState& state) {
  const bool skipped = was_skipped(engine.optimizer().report());
  save(engine, state,
       skipped ? std::numeric_limits<int64_t>::max() : session_->settings.checkpoint.keep_last);
}

void RunCheckpoints::check_end(Engine& engine, const TrainingState& state) const {
  const StepReport report = engine.optimizer().report();
  if (was_skipped(report)) {
    throw NumericError(fmt::format(
        "the gradients of the last steps ({} of {}) were not finite: training has diverged; lower "
        "optimizer.lr. {}",
        report.skipped_in_a_row, state.step, what_is_saved()));
  }
  if (!std::isfinite(state.loss)) {
    throw NumericError(fmt::format(
        "the loss of step {}, the last one, is not finite: training has diverged; lower "
        "optimizer.lr. {}",
        state.step, what_is_saved()));
  }
}

void RunCheckpoints::check_replicas(Engine& engine, const TrainingState& state) {
  const bool wanted = session_->settings.parallelism.check_replicas > 0 && comm_->size() > 1;
  if (wanted && compared_step_ != state.step) {
    compare_replicas(*comm_, hash_replicas(engine), state.step);
    compared_step_ = state.step;
  }
}

void RunCheckpoints::save(Engine& engine, const TrainingState& state, int64_t keep_last) {
  if (saved_step_ == state.step) {
    return;
  }
  check_replicas(engine, state);
  const SectionScope section(Section::save);
  try {
    save_training_state(root_, engine, *session_, state, keep_last, *comm_);
  } catch (const NumericError& error) {
    throw NumericError(fmt::format("{}. {}", error.what(), what_is_saved()));
  }
  saved_step_ = state.step;
}

std::string RunCheckpoints::what_is_saved() const {
  return saved_step_ > 0 ? fmt::format("The checkpoint of step {} is intact", saved_step_)
                         : std::string("Nothing had been saved yet");
}

}  // namespace fp8train
