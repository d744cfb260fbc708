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
using test::RankResult;
using test::same_bits;
using test::small_deepseek;
using test::small_moe;
using test::TrainedEngine;

namespace {

Parameter& named(Engine& engine, const std::string& name) {
  for (const auto& parameter : engine.model().parameters().all()) {
    if (parameter->name == name) {
      return *parameter;
    }
  }
  throw std::invalid_argument("no parameter " + name);
}

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

std::vector<float> gradient_of(TrainedEngine& engine, const std::string& name) {
  return test::gradient_of(*engine.device, named(engine.engine, name));
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

TEST_CASE("a dry run of experts that are alike counts each of them") {
  const std::string plan = GENERATE("fp32", "te-delayed", "deepseek-v3");
  CAPTURE(plan);
  EngineSettings settings = of_128_rows(small_moe(plan));
  settings.step.decoder.recompute = GENERATE(Recompute::none, Recompute::block);
  const DryRunStep alike = dry_run_step(settings, {});
  settings.step.decoder.frozen = {"layers.1.mlp.experts.3.down.weight"};  // has one product less
  const DryRunStep each = dry_run_step(settings, {});
  CHECK(alike.work.gemm_flops - each.work.gemm_flops == 2 * 64 * 32 * 32);
  CHECK(alike.work.operations > each.work.operations);
  CHECK(alike.work.operations < each.work.operations + 16);
  CHECK(alike.plan.scratch_bytes == each.plan.scratch_bytes);
  CHECK(alike.plan.saved_bytes >= each.plan.saved_bytes);
  CHECK(alike.plan.saved_bytes <= each.plan.saved_bytes + 3 * 128 * 32 * 4);
}

TEST_CASE("the log of a dry run has the products of all experts and micro-batches") {
  const DryRunStep step = logged_step(small_moe("fp32", 16), {});
  double flops = 0;
  for (const OpCall& call : step.calls) {
    flops += static_cast<double>(call.times) * call.work.flops;
  }
  CHECK(flops == step.work.gemm_flops + step.work.attention_flops);
}

/// The share of choices that an evaluation drops of 1024 tokens for which all scores are equal, so
/// that the first two of four experts are chosen.
double dropped_of_equal_scores(double capacity_factor) {
  EngineSettings settings = small_moe("fp32");
  settings.step.micro_batch_size = 64;
  settings.step.decoder.moe.capacity_factor = capacity_factor;
  TrainedEngine trained(settings);
  const std::vector<float> zeros(4 * 32, 0.0F);
  for (const char* name : {"layers.0.mlp.router.weight", "layers.1.mlp.router.weight"}) {
    set_value(*trained.device, named(trained.engine, name), zeros.data());
  }
  trained.engine.weights_changed();
  for (const int batches : {2, 1}) {  // begin_evaluation() clears what was before
    trained.engine.begin_evaluation();
    for (int i = 0; i < batches; ++i) {
      trained.engine.evaluate(test::random_batch(1, 64));
    }
  }
  return trained.engine.evaluation_loss().dropped;
}

TEST_CASE("choices that an evaluation drops are counted") {
  CHECK(dropped_of_equal_scores(1.0) == 0.0);  // there is memory for twice the mean of 512
  CHECK(dropped_of_equal_scores(0.5) == 0.5);
  CHECK(dropped_of_equal_scores(0.25) == 0.75);
}

/// A batch, cut into micro-batches, of which some positions are no targets.
struct PartsOfBatch {
  Batch whole = test::random_batch(7, 4);
  int64_t done = 0;

  explicit PartsOfBatch(bool masks) {
    for (size_t i = 0; i < whole.targets.size() && masks; i += 3) {
      whole.targets[i] = kIgnoredTarget;
    }
    whole.step_targets =
        masks ? std::ranges::count_if(whole.targets, [](int32_t id) { return id >= 0; }) : 0;
  }
  Batch next(int64_t rows) {
    Batch part = whole;
    const auto cut = [&](std::vector<int32_t>& of) {
      of = {of.begin() + done * whole.columns, of.begin() + (done + rows) * whole.columns};
    };
    part.rows = rows;
    cut(part.tokens);
    cut(part.targets);
    done += rows;
    return part;
  }
};

/// The gradient of the first router where its input is all ones and its logits are zero.
std::vector<float> router_gradient(const MoeSettings& moe, int64_t accumulation, bool masks) {
  EngineSettings settings = small_moe("fp32", accumulation);
  settings.step.micro_batch_size = 4 / accumulation;
  settings.step.decoder.moe = moe;
  settings.counts_targets = masks;
  settings.optimizer.lr = 0.0;
  TrainedEngine trained(settings);
  const auto fill = [&](const std::string& name, float value) {
    Parameter& parameter = named(trained.engine, name);
    const std::vector<float> values(static_cast<size_t>(parameter.shape.count()), value);
    set_value(*trained.device, parameter, values.data());
  };
  fill("embedding.weight", 1.0F);
  fill("layers.0.attention.output.weight", 0.0F);
  fill("layers.0.mlp.router.weight", 0.0F);
  trained.engine.weights_changed();
  PartsOfBatch batch(masks);
  trained.engine.step([&] { return batch.next(4 / accumulation); }, 0, 0.0, false);
  return gradient_of(trained, "layers.0.mlp.router.weight");
}

TEST_CASE("gradients of both losses of a router are those on paper") {
  const int64_t accumulation = GENERATE(1, 2, 4);
  const bool masks = GENERATE(false, true);
  CAPTURE(accumulation, masks);
  const MoeSettings without = {.capacity_factor = 2.0};
  const std::vector<float> base = router_gradient(without, accumulation, masks);
  MoeSettings with = without;
  with.balance_loss = 0.5;
  const std::vector<float> balance = router_gradient(with, accumulation, masks);
  with.balance_loss = 0.0;
  with.z_loss = 0.25;
  const std::vector<float> z = router_gradient(with, accumulation, masks);
  // Scores p are 1/4, and experts 0 and 1 are chosen: f is 2, 2, 0, 0. d(sum f p)/d logit j is
  // p (f_j - sum f p), and d(log sum exp)^2 is 2 ln(4) p. The mean over tokens is that of one.
  for (size_t i = 0; i < base.size(); ++i) {
    const double sign = i / 32 < 2 ? 1.0 : -1.0;
    CHECK(balance[i] - base[i] == Approx(0.5 * sign * 0.25).epsilon(1e-4));
    CHECK(z[i] - base[i] == Approx(0.25 * 2 * std::log(4.0) * 0.25).epsilon(1e-4));
  }
}

TEST_CASE("ranks do not share layers of a model with experts") {
  EngineSettings settings = small_moe("fp32");
  settings.strategy.layout.tensor = 2;
  const std::vector<std::string> errors =
      test::run_ranks(Topology::blocks(2, 2), [&](Communicator& comm) {
        const std::unique_ptr<Device> device = make_device(DeviceKind::meta);
        const Engine engine(*device, settings, &comm);
      });
  for (const std::string& error : errors) {
    CHECK(error.find("parallelism.tensor is 2; with experts it must be 1") != std::string::npos);
  }
}
