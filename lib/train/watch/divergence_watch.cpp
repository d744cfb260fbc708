#include "train/watch/divergence_watch.h"

#include <fmt/format.h>

#include <vector>

#include "base/log.h"
#include "train/watch/divergence.h"
#include "train/watch/first_non_finite.h"

namespace fp8train {

void DivergenceWatch::begin_at(TrainingState& state, Engine& engine) {
  engine.take_losses();
  if (!spikes_.enabled()) {
    state.spikes = {};
  }
  spikes_.restore(state.spikes);
  skips_.begin(engine.optimizer().control().skipped_steps - state.unseen_skips);
  checked_step_ = state.checked_step;
}

void DivergenceWatch::take_losses(Engine& engine, TrainingState& state) {
  state.unseen_skips = skips_.unseen(engine.optimizer().control());
  state.checked_step = checked_step_;
  if (!spikes_.enabled()) {
    return;
  }
  const std::vector<double> losses = engine.take_losses();
  int64_t step = state.step - static_cast<int64_t>(losses.size());
  for (const double loss : losses) {
    spikes_.add(++step, loss);
  }
  state.spikes = spikes_.history();
}

void DivergenceWatch::check(Engine& engine, Communicator& comm, TrainingState& state,
                            const std::function<Batch()>& next_batch) {
  take_losses(engine, state);
  const int64_t steps = state.step - checked_step_;
  checked_step_ = state.step;
  if (spikes_.has_spike()) {
    throw DivergenceError(spikes_.describe() + "; lower optimizer.lr", DivergenceKind::loss_spike,
                          state.spikes.first_high);
  }
  const ops::StepControl control = engine.optimizer().control();
  if (skips_.wants_first_tensor(control, steps)) {
    skips_.set_first_tensor(first_non_finite(engine, comm, next_batch));
  }
  skips_.check(control, state.step, steps);
  state.unseen_skips = 0;
  state.checked_step = state.step;
}

bool SkipGuard::wants_first_tensor(const ops::StepControl& control, int64_t steps) const {
  const bool begins_or_ends =
      control.skipped_in_a_row <= steps || control.skipped_in_a_row >= most_in_a_row_;
  return control.skipped_in_a_row > 0 && begins_or_ends && !searching(control);
}

std::string SkipGuard::first_tensor() const {
  return first_tensor_.empty()
             ? std::string()
             : fmt::format("; the first tensor that is not finite: {}", first_tensor_);
}

void SkipGuard::check(const ops::StepControl& control, int64_t step, int64_t steps) {
  const int64_t skips = control.skipped_steps - seen_;
  seen_ = control.skipped_steps;
  if (skips == 0 || searching(control)) {
    return;
  }
  const std::string what = fmt::format(
      "{} of the {} steps up to step {} had a gradient that was not finite", skips, steps, step);
  if (non_finite_ == OnNonFinite::stop) {
    throw DivergenceError(fmt::format("{} (training.non_finite: stop){}", what, first_tensor()),
                          DivergenceKind::non_finite_gradient, step - steps + 1);
  }
  const bool is_last = control.skipped_in_a_row > 0;
  log_warning(fmt::format("{} and were skipped{}", what, is_last ? first_tensor() : ""));
  check_row(control, step);
}

void SkipGuard::check_row(const ops::StepControl& control, int64_t step) const {
  if (control.skipped_in_a_row >= most_in_a_row_ && !searching(control)) {
    throw only_skipped(control, step, first_tensor());
  }
}

}  // namespace fp8train
