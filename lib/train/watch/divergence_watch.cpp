#include "train/watch/divergence_watch.h"

#include <vector>

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

}  // namespace fp8train
