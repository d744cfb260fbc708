// The loads of experts, as an Engine sees them.

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "comm/communicator.h"
#include "engine/engine.h"

namespace fp8train {
namespace {

/// Returns the rows that experts have computed in a step, in which `counted` of `layers` are
/// trained.
int64_t rows_of_step(Decoder& model, const EngineSettings& settings, int64_t counted,
                     int64_t layers) {
  const int64_t tokens = settings.rows_of_rank() / settings.strategy.layout.tensor;
  return settings.step.decoder.moe.dropless ? model.take_dropless_rows()
                                            : settings.step.gradient_accumulation_steps *
                                                  model.expert_rows(tokens) * counted / layers;
}

}  // namespace

std::vector<std::pair<size_t, std::vector<int64_t>>> ExpertLoads::percent_by_layer() const {
  std::vector<std::pair<size_t, std::vector<int64_t>>> layers;
  for (size_t layer = 0; layer < choices.size(); ++layer) {
    const auto all = std::accumulate(choices[layer].begin(), choices[layer].end(), int64_t{0});
    std::vector<int64_t> percent;
    for (const int64_t own : choices[layer]) {
      const double of_mean = static_cast<double>(own * std::ssize(choices[layer])) /
                             static_cast<double>(std::max<int64_t>(all, 1));
      percent.push_back(own == 0 ? 0 : std::max<int64_t>(std::llround(100 * of_mean), 1));
    }
    if (all > 0) {
      layers.emplace_back(layer, std::move(percent));
    }
  }
  return layers;
}

void Engine::clear_step() {
  clear_totals(kTrainingTotals);
  optimizer().clear_gradients(device_->stream());
  if (const View loads = model_.expert_loads(); !loads.empty()) {
    device_->fill_zero(loads.data, loads.bytes());
    model_.take_dropless_rows();
  }
  if (double* const losses = model_.router_losses(); losses != nullptr) {
    device_->fill_zero(losses, 2 * sizeof(double));
  }
}

View Engine::loads_of_ranks() {
  const View own = model_.expert_loads();
  return gathered_loads_.empty() && !own.empty() ? reshaped(own, {1, own.shape[0], own.shape[1]})
                                                 : gathered_loads_.view();
}

void Engine::balance_experts() {
  const View own = model_.expert_loads();
  if (own.empty()) {
    return;
  }
  if (!gathered_loads_.empty()) {
    mesh()
        .group(Group::stage)
        ->all_gather(device_->stream(), own.data, gathered_loads_.view().data, own.bytes())
        .wait();
  }
  const auto rate = static_cast<float>(settings_.step.decoder.moe.bias_rate);
  model_.balance_experts(device_->stream(), loads_of_ranks(), rate, optimizer().skip());
}

double Engine::evaluation_drops() const {
  struct Sums {
    int64_t choices = 0, dropped = 0;
  } own;
  const View loads = model_.evaluation_loads();
  std::vector<int64_t> counts(static_cast<size_t>(loads.empty() ? 0 : loads.count()));
  if (!counts.empty()) {
    device_->copy_to_host(counts.data(), loads.data, loads.bytes());
  }
  for (size_t i = 0; i < counts.size(); ++i) {
    const bool is_dropped = static_cast<int64_t>(i + 1) % loads.shape[1] == 0;
    (is_dropped ? own.dropped : own.choices) += counts[i];
  }
  Sums all;
  for (const Sums& rank : mesh().gather_values(own)) {
    all.choices += rank.choices;
    all.dropped += rank.dropped;
  }
  return static_cast<double>(all.dropped) / static_cast<double>(std::max<int64_t>(all.choices, 1));
}

ExpertLoads Engine::expert_loads() {
  struct Sums {
    int64_t choices, dropped, rows;
    double most, least;
  };
  const View of_ranks = loads_of_ranks();
  const Shape& shape = of_ranks.shape;
  ExpertLoads loads;
  Sums own = {.choices = 0, .dropped = 0, .rows = 0, .most = 0.0, .least = 1e300};
  if (!of_ranks.empty()) {
    std::vector<int64_t> counts(static_cast<size_t>(of_ranks.count()));
    device_->copy_to_host(counts.data(), of_ranks.data, of_ranks.bytes());
    const auto experts = shape[2] - 1;
    loads.choices.assign(static_cast<size_t>(shape[1]),
                         std::vector<int64_t>(static_cast<size_t>(experts)));
    for (size_t i = 0; i < counts.size(); ++i) {
      const int64_t expert = static_cast<int64_t>(i) % shape[2];
      const int64_t layer = static_cast<int64_t>(i) / shape[2] % shape[1];
      if (expert == experts) {
        own.dropped += counts[i];
      } else {
        own.choices += counts[i];
        loads.choices[static_cast<size_t>(layer)][static_cast<size_t>(expert)] += counts[i];
      }
    }
    int64_t counted = 0;  // layers: those below the lowest that is trained run no backward
    for (const std::vector<int64_t>& layer : loads.choices) {
      const auto choices = std::accumulate(layer.begin(), layer.end(), int64_t{0});
      if (choices == 0) {
        continue;
      }
      ++counted;
      const auto [least, most] = std::ranges::minmax(layer);
      const double mean = static_cast<double>(choices) / static_cast<double>(experts);
      own.most = std::max(own.most, static_cast<double>(most) / mean);
      own.least = std::min(own.least, static_cast<double>(least) / mean);
    }
    own.rows = shape[0] * rows_of_step(model_, settings_, counted, shape[1]);
  }
  Sums all = own;
  all.choices = all.dropped = all.rows = 0;
  for (const Sums& rank : mesh().gather_values(own)) {
    all.choices += rank.choices;
    all.dropped += rank.dropped;
    all.rows += rank.rows;
    all.most = std::max(all.most, rank.most);
    all.least = std::min(all.least, rank.least);
  }
  const auto choices = static_cast<double>(std::max<int64_t>(all.choices, 1));
  const auto rows = static_cast<double>(std::max<int64_t>(all.rows, 1));
  loads.dropped = static_cast<double>(all.dropped) / choices;
  loads.padding = 1.0 - static_cast<double>(all.choices - all.dropped) / rows;
  loads.most = all.most;
  loads.least = all.choices == 0 ? 0.0 : all.least;
  read_router_losses(loads);
  return loads;
}

void Engine::read_router_losses(ExpertLoads& loads) const {
  using Losses = std::array<double, 2>;
  const MoeSettings& moe = settings_.step.decoder.moe;
  if (!moe.has_losses()) {
    return;
  }
  Losses own = {};
  if (const double* const sums = model_.router_losses(); sums != nullptr) {
    device_->copy_to_host(own.data(), sums, sizeof(own));
  }
  Losses means = {};
  const auto positions = static_cast<double>(settings_.step.gradient_accumulation_steps *
                                             settings_.rows_of_rank() * mesh().size(Group::state));
  for (const Losses& of_rank : mesh().gather_values(own)) {
    means[0] += of_rank[0] / positions;
    means[1] += of_rank[1] / positions;
  }
  loads.balance_loss = moe.balance_loss != 0 ? std::optional(means[0]) : std::nullopt;
  loads.z_loss = moe.z_loss != 0 ? std::optional(means[1]) : std::nullopt;
}

}  // namespace fp8train
