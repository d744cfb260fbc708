#include "train/divergence_watch.h"

#include <fmt/format.h>

#include <vector>

#include "train/first_non_finite.h"

namespace fp8train {

void DivergenceWatch::begin_at(const TrainingState& state, Engine& engine) {
  engine.take_losses();
  spikes_.restore(state.spikes);
  skips_.begin(engine.optimizer().report().skipped_steps);
  checked_step_ = state.step;
}

void DivergenceWatch::take_losses(Engine& engine, TrainingState& state) {
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
                            const std::string& saved, const std::function<Batch()>& next_batch) {
  take_losses(engine, state);
  const int64_t steps = state.step - checked_step_;
  checked_step_ = state.step;
  if (spikes_.has_spike()) {
    throw DivergenceError(fmt::format("{}; lower optimizer.lr. {}", spikes_.describe(), saved),
                          DivergenceKind::loss_spike, state.spikes.first_high);
  }
  const StepReport report = engine.optimizer().report();
  if (skips_.wants_first_tensor(report, steps)) {
    skips_.set_first_tensor(first_non_finite(engine, comm, next_batch));
  }
  skips_.check(report, state.step, steps, saved);
}

}  // namespace fp8train
