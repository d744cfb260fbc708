// Mixtures of experts that drop no token: the results of a capacity that all tokens fit into, in
// less memory, which no routing exceeds.

#include <catch2/catch.hpp>

#include <string>
#include <vector>

#include "base/philox.h"
#include "support/small_moe.h"
#include "train/layout_results.h"
#include "train/trained_engine.h"

using namespace fp8train;
using namespace fp8train::test;

namespace {

/// 512 rows and eight experts, of which a token has two.
EngineSettings dropless(const std::string& plan, bool deepseek = false) {
  EngineSettings settings = deepseek ? small_deepseek(plan) : small_moe(plan);
  settings.model.moe.experts = 8;
  settings.step.micro_batch_size = 32;
  settings.step.decoder.moe.dropless = true;
  return settings;
}

/// The same with a capacity for all tokens.
EngineSettings with_capacity(EngineSettings settings) {
  settings.step.decoder.moe.dropless = false;
  settings.step.decoder.moe.capacity_factor = 4.0;
  return settings;
}

/// Gives the routers other weights: some send all tokens to the same experts.
void route_anew(TrainedEngine& trained, uint64_t seed) {
  for (const auto& parameter : trained.engine.model().parameters().all()) {
    if (parameter->name.ends_with(".router.weight")) {
      const auto count = static_cast<size_t>(parameter->shape.count());
      const auto width = static_cast<size_t>(parameter->shape.back());
      std::vector<float> values(count);
      for (size_t i = 0; i < count; ++i) {
        const float draw = static_cast<float>(philox(seed, 0, i).word[0]) * 0x1p-31F - 1.0F;
        const bool alike = seed % 3 == 0;  // all scores are equal: the first experts get all
        values[i] = alike ? 0.0F : draw * (seed % 3 == 1 ? 30.0F : 0.1F);
        values[i] = seed % 5 == 4 && i / width < 2 ? 0.0F : values[i];
      }
      set_value(*trained.device, *parameter, values.data());
    }
  }
  trained.engine.weights_changed();
}

}  // namespace

TEST_CASE("a dropless mixture has the results of a capacity for all tokens, in less memory") {
  const std::string plan = GENERATE("fp32", "bf16", "te-delayed", "te-current", "te-mxfp8",
                                    "deepseek-v3", "torchao-rowwise");
  const bool deepseek = GENERATE(false, true);
  CAPTURE(plan, deepseek);
  EngineSettings settings = dropless(plan, deepseek);
  settings.step.decoder.recompute = deepseek ? Recompute::block : Recompute::none;
  const Results bounded = run(settings, 1, 1);
  const Results whole = run(with_capacity(settings), 1, 1);
  CHECK(bounded.losses == whole.losses);
  // Sums over rows have fewer zeros between them.
  CHECK(difference(whole.gradients, bounded.gradients, plan == "fp32" ? 1e-6 : 2e-3) == "");
  CHECK(bounded.loads.choices == whole.loads.choices);
  CHECK(bounded.loads.dropped == 0.0);
  CHECK(bounded.loads.padding < whole.loads.padding);
  CHECK(bounded.as_planned);
  CHECK(whole.as_planned);
}

TEST_CASE("a dropless mixture plans memory for all choices, and few rows in addition") {
  EngineSettings settings = dropless("bf16");
  settings.step.micro_batch_size = 512;  // 8192 rows
  const DryRunStep bounded = dry_run_step(settings, {});
  const DryRunStep whole = dry_run_step(with_capacity(settings), {});
  settings = with_capacity(settings);
  settings.step.decoder.moe.capacity_factor = 1.0;
  const DryRunStep least = dry_run_step(settings, {});
  CHECK(bounded.work.gemm_flops < 1.2 * least.work.gemm_flops);
  CHECK(static_cast<double>(bounded.plan.saved_bytes) <
        1.2 * static_cast<double>(least.plan.saved_bytes));
  CHECK(static_cast<double>(whole.plan.saved_bytes) >
        1.5 * static_cast<double>(bounded.plan.saved_bytes));
}

TEST_CASE("no routing needs more memory than planned for a dropless mixture") {
  const std::string plan = GENERATE("bf16", "te-delayed", "deepseek-v3", "te-mxfp8", "te-nvfp4");
  const Recompute recompute = GENERATE(Recompute::none, Recompute::mlp);
  const bool offloads = GENERATE(false, true);
  CAPTURE(plan, recompute, offloads);
  EngineSettings settings = dropless(plan);
  settings.model.moe.per_token = 3;
  settings.model.num_hidden_layers = offloads ? 4 : 2;
  settings.step.decoder.recompute = recompute;
  settings.step.decoder.offloads_saved = offloads;
  TrainedEngine trained(settings);
  const StepPlan plan_of_step = dry_run_step(settings, {}).plan;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    route_anew(trained, seed);
    trained.train(1, seed % 2 == 0);
    const ExpertLoads loads = trained.engine.expert_loads();
    CHECK(loads.dropped == 0.0);
    CHECK((seed % 3 != 0 || loads.most == Approx(8.0 / 3.0)));
  }
  const StepPlan used = trained.engine.high_water();
  CHECK(used.saved_bytes <= plan_of_step.saved_bytes);
  CHECK(used.scratch_bytes <= plan_of_step.scratch_bytes);
}

TEST_CASE("rows without a token are those that experts compute") {
  const ExpertLoads loads = run(dropless("bf16"), 1, 1).loads;
  double rows = 0;
  double choices = 0;
  for (const std::vector<int64_t>& layer : loads.choices) {
    for (const int64_t own : layer) {
      rows += static_cast<double>(std::max<int64_t>(own + 127, 128) / 128 * 128);
      choices += static_cast<double>(own);
    }
  }
  CHECK(loads.padding == Approx(1 - choices / rows));
}

TEST_CASE("a dropless mixture that is not trained has no more rows than one with capacities") {
  for (const int64_t sequences : {1, 32}) {
    EngineSettings settings = dropless("te-current");
    settings.trains = false;
    settings.step.micro_batch_size = sequences;
    const StepPlan bounded = dry_run_step(settings, {}).plan;
    CHECK(bounded.scratch_bytes <= dry_run_step(with_capacity(settings), {}).plan.scratch_bytes);
    TrainedEngine trained(settings);
    for (uint64_t seed = 0; seed < 6; ++seed) {
      route_anew(trained, seed);
      trained.engine.begin_evaluation();
      trained.engine.evaluate(random_batch(seed, sequences));
    }
    CHECK(trained.engine.high_water().scratch_bytes <= bounded.scratch_bytes);
  }
}

TEST_CASE("stages of a pipeline and stages of ZeRO have dropless mixtures") {
  EngineSettings settings = dropless("te-delayed");
  settings.step.gradient_accumulation_steps = 2;
  const Results two = run(settings, 2, 2);
  for (const int64_t stage : {2, 3}) {
    settings.strategy.zero_stage = stage;
    const Results parts = run(settings, 2, 2);
    CHECK(parts.losses == two.losses);
    CHECK(parts.as_planned);
  }
  settings.strategy.zero_stage = 0;
  const Results one = run(settings, 1, 2);
  settings.strategy.layout.pipeline = 2;
  settings.strategy.layout.schedule = ScheduleKind::zero_bubble;
  const Results stages = run(settings, 2, 2);
  CHECK(difference(one.values, stages.values, 0) == "");
  CHECK(stages.as_planned);
}

TEST_CASE("ranks with different experts refuse a dropless mixture") {
  EngineSettings settings = dropless("bf16");
  settings.strategy.layout.expert = 2;
  CHECK_THROWS_WITH(dry_run_step(settings, {}, Topology::blocks(2, 2), 0),
                    Catch::Contains("moe.dropless") &&
                        Catch::Contains("moe.capacity_factor 4, with which none is dropped"));
}
