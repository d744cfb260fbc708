#include "train/run_checkpoints.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/log.h"
#include "train/divergence.h"

namespace fp8train {

void RunCheckpoints::save_if_good(Engine& engine, const TrainingState& state) {
  const bool loss_is_finite = std::isfinite(engine.step_loss().mean);
  const StepReport report = engine.optimizer().report();
  const bool loss_is_high = state.spikes.high_steps > 0;
  if (loss_is_finite && !loss_is_high && !was_skipped(report)) {
    is_due_ = false;
    save(engine, state, session_->settings.checkpoint.keep_last, true);
    return;
  }
  skips_->check_row(report, state.step, what_is_saved());
  if (!is_due_) {
    const char* why = !loss_is_finite       ? "loss is not finite"
                      : was_skipped(report) ? "gradient is not finite"
                                            : "loss is high (training.spike_threshold)";
    log_warning(fmt::format("step {} is not saved: its {}; the next good step will be saved. {}",
                            state.step, why, what_is_saved()));
  }
  is_due_ = true;
}

void RunCheckpoints::save_last(Engine& engine, const TrainingState& state) {
  const int64_t interval = session_->settings.checkpoint.interval;
  const bool is_interval = interval > 0 && state.step % interval == 0;
  const bool is_bad = was_skipped(engine.optimizer().report()) || state.spikes.high_steps > 0;
  save(engine, state,
       is_bad ? std::numeric_limits<int64_t>::max() : session_->settings.checkpoint.keep_last,
       !is_bad && is_interval);
}

void RunCheckpoints::check_end(Engine& engine, const TrainingState& state) const {
  const StepReport report = engine.optimizer().report();
  if (was_skipped(report)) {
    throw DivergenceError(
        fmt::format("the gradients of the last steps ({} of {}) were not finite: training has "
                    "diverged; lower optimizer.lr{}. {}",
                    report.skipped_in_a_row, state.step, skips_->first_tensor(), what_is_saved()),
        DivergenceKind::skipped_steps, state.step - report.skipped_in_a_row + 1);
  }
  if (!std::isfinite(state.loss)) {
    throw DivergenceError(
        fmt::format("the loss of step {}, the last one, is not finite: training has diverged; "
                    "lower optimizer.lr. {}",
                    state.step, what_is_saved()),
        DivergenceKind::non_finite_loss, state.step);
  }
}

void RunCheckpoints::save(Engine& engine, TrainingState state, int64_t keep_last,
                          bool is_scheduled) {
  if (saved_step_ == state.step) {
    return;
  }
  state.is_scheduled = is_scheduled;
  try {
    save_training_state(root_, engine, *session_, state, keep_last, *comm_);
  } catch (const DivergenceError& error) {
    throw DivergenceError(fmt::format("{}. {}", error.what(), what_is_saved()), error.kind(),
                          error.first_step());
  }
  saved_step_ = state.step;
}

std::string RunCheckpoints::what_is_saved() const {
  return saved_step_ > 0 ? fmt::format("The checkpoint of step {} is intact", saved_step_)
                         : std::string("Nothing had been saved yet");
}

}  // namespace fp8train
