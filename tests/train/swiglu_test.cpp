// Whole steps of models whose down projections read a smoothed product, or one in bf16.

#include <catch2/catch.hpp>

#include <cmath>
#include <cstring>

#include "base/philox.h"
#include "engine/dry_run.h"
#include "support/parameters.h"
#include "support/small_llama.h"

using namespace fp8train;

namespace {

EngineSettings small(const std::string& plan, SwigluInput swiglu) {
  EngineSettings settings = test::small_llama(plan, 2);
  settings.plan.swiglu = swiglu;
  return settings;
}

struct Trained {
  std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  Engine engine;

  explicit Trained(const EngineSettings& settings) : engine(*device, settings) {
    engine.reserve(dry_run_step(settings, {}).plan);
    engine.model().initialize(3);
    engine.weights_changed();
  }
  double train(int64_t steps, bool statistics = false) {
    for (int64_t step = 0; step < steps; ++step) {
      uint64_t micro = 0;
      engine.step([&] { return test::random_batch(micro++); }, step, 1e-2F, statistics);
    }
    return engine.step_loss().mean;
  }
  std::vector<float> weights() { return test::values_of(*device, engine.model().parameters()); }
};

const char* const kRows[] = {"te-delayed", "te-current", "te-blockwise",          "te-mxfp8",
                             "msamp-o3",   "coat",       "torchao-rowwise-gw-hp", "fp8-min"};

}  // namespace

TEST_CASE("a smoothed product learns as bf16 does, within the plan made on meta") {
  // Under a sanitizer: one scale for a tensor, and blocks.
  const std::string plan = GENERATE(
      from_range(std::begin(kRows), test::kSanitized ? std::begin(kRows) + 3 : std::end(kRows)));
  const SwigluInput swiglu = GENERATE(SwigluInput::smoothed, SwigluInput::high_precision);
  CAPTURE(plan, static_cast<int>(swiglu));
  const double bf16 = Trained(small("bf16", SwigluInput::as_planned)).train(8);
  Trained run(small(plan, swiglu));
  const uint64_t before = run.device->ledger().allocations();
  const double loss = run.train(8, true);
  CHECK(loss == Approx(bf16).margin(0.2));  // the noise of FP8: up to 0.1
  CHECK(run.device->ledger().allocations() == before);
  CHECK(run.engine.optimizer().control().skipped_steps == 0);
}

TEST_CASE("recompute of a smoothed product changes no bit") {
  const std::string plan = GENERATE("te-delayed", "te-current", "coat");
  const Recompute recompute = GENERATE(Recompute::mlp, Recompute::block);
  CAPTURE(plan, name_of(recompute));
  EngineSettings settings = small(plan, SwigluInput::smoothed);
  Trained stored(settings);
  settings.step.decoder.recompute = recompute;
  Trained recomputed(settings);
  stored.train(4);
  recomputed.train(4);
  const std::vector<float> a = stored.weights();
  const std::vector<float> b = recomputed.weights();
  REQUIRE(a.size() == b.size());
  CHECK(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

TEST_CASE("an infinity in a smoothed product makes the step a skipped one") {
  const std::string plan = GENERATE("te-delayed", "te-current", "te-mxfp8");
  CAPTURE(plan);
  Trained run(small(plan, SwigluInput::smoothed));
  for (const auto& parameter : run.engine.model().parameters().all()) {
    if (parameter->name == "layers.1.mlp.up.weight") {
      std::vector<float> values = test::value_on_host(*run.device, *parameter);
      values.back() = INFINITY;  // of the linear branch, which the scales come from
      set_value(*run.device, *parameter, values.data());
    }
  }
  run.engine.weights_changed();
  run.train(1);
  CHECK(run.engine.optimizer().control().skipped_steps == 1);
}

TEST_CASE("evaluation smooths too") {
  const auto evaluated = [](SwigluInput swiglu) {
    Trained run(small("te-current", swiglu));
    run.train(1);
    run.engine.begin_evaluation();
    run.engine.evaluate(test::random_batch(9));
    return run.engine.evaluation_loss().mean;
  };
  const double plain = evaluated(SwigluInput::as_planned);
  const double smooth = evaluated(SwigluInput::smoothed);
  CHECK(smooth != plain);                        // other roundings
  CHECK(smooth == Approx(plain).epsilon(0.02));  // the noise of FP8
}
