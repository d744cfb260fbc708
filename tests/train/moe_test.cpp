// Models with experts: what they compute, against models without, and the same on any ranks.

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "support/small_moe.h"
#include "train/rank_results.h"
#include "train/trained_engine.h"

using namespace fp8train;
using test::gradient_of;
using test::named;
using test::RankResult;
using test::same_bits;
using test::small_deepseek;
using test::small_moe;
using test::TrainedEngine;

namespace {

/// "layers.0.mlp.experts.3.up.weight" becomes "layers.0.mlp.up.weight".
std::string without_expert(const std::string& name) {
  const size_t begin = name.find(".experts.");
  return begin == std::string::npos
             ? name
             : name.substr(0, begin) + name.substr(name.find('.', begin + 9));
}

/// Gives the parameters of a model with experts the values of one without.
void copy_values(TrainedEngine& dense, TrainedEngine& experts) {
  for (const auto& parameter : experts.engine.model().parameters().all()) {
    if (parameter->name.find(".router.") == std::string::npos) {
      const std::vector<float> values =
          test::value_on_host(*dense.device, named(dense.engine, without_expert(parameter->name)));
      set_value(*experts.device, *parameter, values.data(), largest_magnitude(values));
    }
  }
  experts.engine.weights_changed();
}

/// 128 rows, so that no plan pads them.
EngineSettings of_128_rows(EngineSettings settings) {
  settings.step.micro_batch_size = 8;
  settings.model.intermediate_size = settings.model.moe.width;
  return settings;
}

std::vector<std::string> plans_without_draws() {
  std::vector<std::string> plans;
  for (const std::string& name : test::compared_plans()) {
    const std::set<std::string> draws = {"te-nvfp4", "torchao-mxfp4", "llm.q",   "fp8-lean",
                                         "fp8-min",  "int8-qat",      "fp8-safe"};
    if (!draws.contains(name)) {
      plans.push_back(name);
    }
  }
  return plans;
}

}  // namespace

TEST_CASE("one expert of weight 1 is the layer of a model without experts") {
  const std::string plan = GENERATE(from_range(plans_without_draws()));
  CAPTURE(plan);
  EngineSettings settings = of_128_rows(small_moe(plan));
  settings.model.moe = {.experts = 1, .per_token = 1, .width = 64, .normalizes = false};
  settings.model.intermediate_size = 64;
  settings.step.decoder.moe = {.capacity_factor = 1.0};
  TrainedEngine experts(settings);
  settings.model.moe = {};
  TrainedEngine dense(settings);
  copy_values(dense, experts);
  experts.train(1);
  dense.train(1);
  CHECK(experts.engine.step_loss().mean == dense.engine.step_loss().mean);
  for (const auto& parameter : experts.engine.model().parameters().all()) {
    CAPTURE(parameter->name);
    const std::vector<float> gradient = test::gradient_of(*experts.device, *parameter);
    if (parameter->name.ends_with("router.weight")) {
      CHECK(std::ranges::all_of(gradient, [](float value) { return value == 0.0F; }));
    } else {
      CHECK(same_bits(gradient, gradient_of(dense, without_expert(parameter->name))));
    }
  }
}

TEST_CASE("equal experts are the layer of a model without experts") {
  EngineSettings settings = of_128_rows(small_moe("fp32"));
  settings.step.decoder.moe = {.capacity_factor = 2.0};
  TrainedEngine experts(settings);
  settings.model.moe = {};
  TrainedEngine dense(settings);
  copy_values(dense, experts);
  experts.train(1);
  dense.train(1);
  CHECK(experts.engine.step_loss().mean == Approx(dense.engine.step_loss().mean).epsilon(1e-6));
  CHECK(experts.engine.expert_loads().dropped == 0.0);
  const std::vector<float> wanted = gradient_of(dense, "layers.1.mlp.down.weight");
  std::vector<float> sum(wanted.size());
  for (int expert = 0; expert < 4; ++expert) {
    const std::vector<float> gradient =
        gradient_of(experts, "layers.1.mlp.experts." + std::to_string(expert) + ".down.weight");
    for (size_t i = 0; i < sum.size(); ++i) {
      sum[i] += gradient[i];
    }
  }
  for (size_t i = 0; i < sum.size(); ++i) {
    CHECK(sum[i] == Approx(wanted[i]).epsilon(1e-3).margin(1e-7));
  }
}

TEST_CASE("gradients of routers and experts are slopes of the loss") {
  const bool deepseek = GENERATE(false, true);
  CAPTURE(deepseek);
  EngineSettings settings = deepseek ? small_deepseek("fp32") : small_moe("fp32");
  settings.model.initializer_range = 0.3F;
  settings.step.decoder.moe = {.capacity_factor = 4.0, .bias_rate = 0.0};
  settings.optimizer.lr = 0.0;
  settings.optimizer.weight_decay = 0.0;
  const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  Engine engine(*device, settings);
  engine.reserve(dry_run_step(settings, {}).plan);
  engine.model().initialize(3);
  engine.weights_changed();
  const Batch batch = test::random_batch(5);
  const auto loss = [&] {
    engine.weights_changed();
    engine.begin_evaluation();
    engine.evaluate(batch);
    return engine.evaluation_loss().mean;
  };
  engine.step([&] { return batch; }, 0, 0.0, false);
  std::vector<std::string> names = {"attention.qkv.weight", "mlp_norm.weight", "mlp.router.weight",
                                    "mlp.experts.0.up.weight", "mlp.experts.2.down.weight"};
  if (deepseek) {
    names.emplace_back("mlp.shared.up.weight");
  }
  for (const std::string& name : names) {
    Parameter& parameter = named(engine, "layers.1." + name);
    const std::vector<float> gradient = test::gradient_of(*device, parameter);
    // A direction with all elements, so that a choice on its edge does not decide.
    std::vector<float> values = test::value_on_host(*device, parameter);
    double norm = 0;
    for (const float value : gradient) {
      norm += static_cast<double>(value) * static_cast<double>(value);
    }
    REQUIRE(norm > 0);
    const double step = 2e-3 / std::sqrt(norm);
    const auto loss_at = [&](double distance) {
      std::vector<float> moved = values;
      for (size_t i = 0; i < moved.size(); ++i) {
        moved[i] += static_cast<float>(distance * static_cast<double>(gradient[i]));
      }
      set_value(*device, parameter, moved.data());
      return loss();
    };
    // On one side a token may change its expert, which is a step of the loss.
    const double at = loss_at(0);
    const double above = (loss_at(step) - at) / step;
    const double below = (at - loss_at(-step)) / step;
    set_value(*device, parameter, values.data());
    CAPTURE(name, norm, above, below);
    CHECK(std::min(std::abs(above - norm), std::abs(below - norm)) <= 3e-3 * norm);
  }
}

TEST_CASE("an expert without tokens has no gradient, and its moments decay") {
  EngineSettings settings = small_deepseek("fp32");
  settings.model.moe.groups = settings.model.moe.groups_per_token = 1;
  settings.step.decoder.moe = {.capacity_factor = 4.0, .bias_rate = 0.0};
  TrainedEngine trained(settings);
  trained.train(1);
  const std::string expert = "layers.1.mlp.experts.3.up.weight";
  const ParameterStore& store = trained.engine.model().parameters();
  const auto index = static_cast<size_t>(
      std::ranges::find_if(store.all(), [&](const auto& each) { return each->name == expert; }) -
      store.all().begin());
  const auto moments = [&] {
    return to_host_f32(*trained.device,
                       trained.engine.optimizer().states().front()->of(index).codes);
  };
  const std::vector<float> before = moments();
  REQUIRE(std::ranges::any_of(before, [](float value) { return value != 0.0F; }));
  std::vector<float> bias(8, 0.0F);
  bias[3] = -100.0F;
  set_value(*trained.device, named(trained.engine, "layers.1.mlp.router.bias"), bias.data());
  trained.train(1);
  CHECK(trained.engine.expert_loads().least == 0.0);
  CHECK(trained.engine.expert_loads().choices[0][3] == 0);
  const std::vector<float> gradient = gradient_of(trained, expert);
  CHECK(std::ranges::all_of(gradient, [](float value) { return value == 0.0F; }));
  const std::vector<float> after = moments();
  const auto beta = static_cast<float>(settings.optimizer.betas[0]);
  for (size_t i = 0; i < before.size(); ++i) {
    CHECK(after[i] == Approx(beta * before[i]).epsilon(1e-6));
  }
}

TEST_CASE("every plan trains on where an expert has no tokens") {
  const std::string plan = GENERATE(from_range(test::compared_plans()));
  CAPTURE(plan);
  EngineSettings settings = small_deepseek(plan);
  settings.model.moe.groups = settings.model.moe.groups_per_token = 1;
  settings.step.decoder.moe = {.capacity_factor = 4.0, .bias_rate = 0.0};
  TrainedEngine trained(settings);
  std::vector<float> bias(8, 0.0F);
  bias[3] = -100.0F;
  set_value(*trained.device, named(trained.engine, "layers.1.mlp.router.bias"), bias.data());
  trained.train(3);
  CHECK(trained.engine.expert_loads().choices[0][3] == 0);
  CHECK(std::isfinite(trained.engine.step_loss().mean));
  CHECK(trained.engine.optimizer().control().skipped_steps == 0);
  for (const char* layer : {"up", "down"}) {
    const std::vector<float> gradient =
        gradient_of(trained, std::string("layers.1.mlp.experts.3.") + layer + ".weight");
    CHECK(std::ranges::all_of(gradient, [](float value) { return value == 0.0F; }));
  }
  const std::vector<float> weights = trained.weights();
  CHECK(std::ranges::all_of(weights, [](float value) { return std::isfinite(value); }));
}

TEST_CASE("recompute changes no bit of a model with experts, and counts no token twice") {
  const std::string plan = GENERATE(from_range(test::compared_plans()));
  CAPTURE(plan);
  EngineSettings settings = small_deepseek(plan, 2);
  TrainedEngine stored(settings);
  settings.step.decoder.recompute = Recompute::block;
  TrainedEngine recomputed(settings);
  recomputed.spoils_gradients = true;  // the first micro-batch overwrites them
  for (TrainedEngine* engine : {&stored, &recomputed}) {
    const uint64_t allocations = engine->device->ledger().allocations();
    engine->train(3);
    CHECK(engine->device->ledger().allocations() == allocations);
    CHECK(std::isfinite(engine->engine.step_loss().mean));
    CHECK(engine->engine.optimizer().control().skipped_steps == 0);
  }
  CHECK(same_bits(stored.weights(), recomputed.weights()));
  const ExpertLoads loads = recomputed.engine.expert_loads();
  CHECK(loads.choices == stored.engine.expert_loads().choices);
  int64_t choices = 0;
  for (const int64_t of_expert : loads.choices.at(0)) {
    choices += of_expert;
  }
  CHECK(choices == 2 * 2 * test::kSmallRows * test::kSmallColumns);
  CHECK((loads.dropped > 0.0 || plan != "fp32"));  // others have memory for more rows
  CHECK(loads.padding > 0.0);
  CHECK(loads.most > 1.0);
  CHECK(loads.least < 1.0);
}

TEST_CASE("ranks that share the optimizer's work train experts as those that do not") {
  const std::string plan = GENERATE(from_range(test::compared_plans()));
  CAPTURE(plan);
  EngineSettings settings = small_deepseek(plan);
  settings.strategy.bucket_bytes = 4096;
  const Topology topology = Topology::blocks(2, 2);
  std::vector<RankResult> wanted = test::train_ranks(settings, topology);
  const ParameterFormats formats = parameter_formats(plan_named(plan));
  const bool rounds_sums = formats.gradient.is_scaled() || formats.gradient_wire.is_scaled();
  for (const int stage : {1, 2, 3}) {
    CAPTURE(stage);
    settings.strategy.zero_stage = stage;
    const std::vector<RankResult> ranks = test::train_ranks(settings, topology);
    if (stage == 1 && rounds_sums) {
      wanted = ranks;  // which stage 0 rounds once more
    }
    CHECK(ranks[0].skipped == 0);
    CHECK(ranks[0].as_planned);
    CHECK(ranks[1].as_planned);
    CHECK(same_bits(ranks[0].weights, ranks[1].weights));
    CHECK(same_bits(ranks[0].weights, wanted[0].weights));
    CHECK(ranks[0].losses == wanted[0].losses);
  }
}

TEST_CASE("a bias of an expert moves against its load, and no gradient does it") {
  EngineSettings settings = small_deepseek("fp32");
  settings.step.decoder.moe.bias_rate = 0.5;
  TrainedEngine trained(settings);
  trained.train(1);
  const Parameter& bias = named(trained.engine, "layers.1.mlp.router.bias");
  CHECK_FALSE(bias.trained);
  const std::vector<float> values = test::value_on_host(*trained.device, bias);
  const std::vector<int64_t> loads = trained.engine.expert_loads().choices.at(0);
  for (size_t i = 0; i < loads.size(); ++i) {
    const int64_t mean = 2 * test::kSmallRows * test::kSmallColumns / 8;
    CHECK(values[i] == (loads[i] < mean ? 0.5F : loads[i] > mean ? -0.5F : 0.0F));
  }
}
