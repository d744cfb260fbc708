#include "train/watch/divergence.h"

#include <fmt/format.h>

#include <cmath>

namespace fp8train {

const char* name_of(DivergenceKind kind) {
  constexpr const char* kNames[] = {"skipped_steps", "non_finite_gradient", "non_finite_weight",
                                    "non_finite_loss", "loss_spike"};
  return kNames[static_cast<size_t>(kind)];
}

DivergenceError only_skipped(const ops::StepControl& control, int64_t step,
                             const std::string& remark) {
  return {fmt::format("the gradients of the last {} steps up to step {} were not finite: training "
                      "has diverged; lower optimizer.lr{}",
                      control.skipped_in_a_row, step, remark),
          DivergenceKind::skipped_steps, step - control.skipped_in_a_row + 1};
}

void check_dropped(int64_t step, const ExpertLoads& loads, const MoeSettings& settings) {
  if (loads.dropped > settings.max_dropped) {
    const bool warms_up = settings.warms_up(step - 1);
    throw NumericError(fmt::format(
        "in step {} experts had no memory for {:.2f} % of what the router sent them, and "
        "moe.max_dropped is {:.2f} %; the largest load was {:.2f} times the mean: raise "
        "moe.{} ({}), moe.balance_loss ({}) or moe.max_dropped",
        step, 100.0 * loads.dropped, 100.0 * settings.max_dropped, loads.most,
        warms_up ? "warmup_capacity_factor" : "capacity_factor",
        warms_up ? settings.warmup_capacity_factor : settings.capacity_factor,
        settings.balance_loss));
  }
}

SpikeDetector::Limit SpikeDetector::limit() const {
  const auto count = static_cast<double>(history_.losses.size());
  double sum = 0;
  for (const double loss : history_.losses) {
    sum += loss;
  }
  const double mean = sum / count;
  double squares = 0;
  for (const double loss : history_.losses) {
    squares += (loss - mean) * (loss - mean);
  }
  const double sd = std::sqrt(squares / (count - 1));
  return {mean, sd, mean + threshold_ * sd};
}

void SpikeDetector::add(int64_t step, double loss) {
  if (!enabled() || has_spike() || !std::isfinite(loss)) {
    return;
  }
  std::vector<double>& losses = history_.losses;
  if (losses.size() == window_ && loss > limit().value) {
    history_.first_high = history_.high_steps == 0 ? step : history_.first_high;
    ++history_.high_steps;
    return;
  }
  history_.high_steps = 0;
  if (losses.size() == window_) {
    losses.erase(losses.begin());
  }
  losses.push_back(loss);
}

std::string SpikeDetector::describe() const {
  const Limit now = limit();
  return fmt::format(
      "the losses of {} steps in a row, from step {} on, were above {:.4f}: the mean of {} steps "
      "before, {:.4f}, and {:g} standard deviations of {:.4f} (training.spike_threshold)",
      history_.high_steps, history_.first_high, now.value, window_, now.mean, threshold_, now.sd);
}

void SpikeDetector::restore(const SpikeHistory& history) {
  history_ = history;
  std::vector<double>& losses = history_.losses;
  if (losses.size() > window_) {
    losses.erase(losses.begin(), losses.end() - static_cast<std::ptrdiff_t>(window_));
  }
}

}  // namespace fp8train
