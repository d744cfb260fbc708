// No code depends on the number of ranks: gradients are divided by it after their casts.

#include <catch2/catch.hpp>

#include <algorithm>
#include <array>

#include "train/rank_results.h"

using namespace fp8train;

namespace {

/// The casts of x and dy in the first step, where ranks have the same batch, and the weights after
/// it: of the first rank, whose random bits are those of one rank.
struct FirstStep {
  std::vector<float> weights;
  std::vector<std::array<double, 6>> casts;
};

/// Every third target is ignored where the batch says how many the step has.
Batch batch_of(const EngineSettings& settings, int ranks) {
  Batch batch = test::random_batch(1);
  for (size_t i = 0; settings.counts_targets && i < batch.targets.size(); i += 3) {
    batch.targets[i] = kIgnoredTarget;
  }
  const auto ignored = std::count(batch.targets.begin(), batch.targets.end(), kIgnoredTarget);
  batch.step_targets = ranks * (static_cast<int64_t>(batch.targets.size()) - ignored);
  return batch;
}

FirstStep first_step(const EngineSettings& settings, int ranks) {
  FirstStep result;
  const auto work = [&](Communicator& comm) {
    const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
    Engine engine(*device, settings, &comm);
    engine.reserve(dry_run_step(settings, {}, comm.topology(), comm.rank()).plan);
    engine.model().initialize(3);
    engine.weights_changed();
    ops::StepControl control = engine.optimizer().control();
    control.loss_scale = 1.0F;  // under that of fp16 no gradient here is small
    engine.optimizer().set_control(control);
    engine.step([&] { return batch_of(settings, ranks); }, 0, 1e-3, true);
    std::vector<float> weights = test::values_of(engine);
    if (comm.rank() != 0) {
      return;
    }
    result.weights = std::move(weights);
    for (const SlotReport& of : engine.model().scaling().report()) {
      if (of.slot->role != "w") {
        result.casts.push_back({of.scale, of.sample.amax, of.sample.signal, of.sample.noise,
                                static_cast<double>(of.statistics.saturated),
                                static_cast<double>(of.statistics.underflow)});
      }
    }
  };
  const std::vector<std::string> errors = test::run_ranks(Topology::blocks(ranks, ranks), work);
  CHECK(errors == std::vector<std::string>(static_cast<size_t>(ranks)));
  return result;
}

}  // namespace

TEST_CASE("casts of the first step do not depend on the number of ranks, in every plan") {
  const std::string plan = GENERATE(from_range(test::compared_plans()));
  EngineSettings settings = test::tiny(plan, 1);
  settings.strategy.zero_stage = GENERATE(0, 2);
  settings.counts_targets = settings.strategy.zero_stage == 0;
  CAPTURE(plan, settings.strategy.zero_stage);
  const FirstStep one = first_step(settings, 1);
  const FirstStep two = first_step(settings, 2);
  CHECK(two.casts == one.casts);
  CHECK(first_step(settings, 3).casts == one.casts);
  CHECK(first_step(settings, 4).casts == one.casts);
  // Two equal gradients have a mean that is the same, but for codes and draws of each rank.
  const bool draws = settings.plan.wgrad.a.rounding == Rounding::stochastic;
  if (!settings.plan.gradient_wire.is_scaled() && !draws) {
    CHECK(test::same_bits(two.weights, one.weights));
  }
}
