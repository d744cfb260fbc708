// Counts of models with experts: dry runs, drops of evaluations, and losses of routers.

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "engine/dry_run.h"
#include "support/small_moe.h"
#include "train/rank_results.h"
#include "train/trained_engine.h"

using namespace fp8train;
using test::gradient_of;
using test::named;
using test::same_bits;
using test::small_moe;
using test::TrainedEngine;

TEST_CASE("a dry run of experts that are alike counts each of them") {
  const std::string plan = GENERATE("fp32", "te-delayed", "deepseek-v3");
  CAPTURE(plan);
  EngineSettings settings = small_moe(plan);
  settings.step.micro_batch_size = 8;  // 128 rows, so that no plan pads them
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
/// `samples`: sequences of 64 that are some.
double dropped_of_equal_scores(double capacity_factor, int64_t samples = 64) {
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
      Batch batch = test::random_batch(1, 64);
      std::fill(batch.targets.begin() + samples * batch.columns, batch.targets.end(),
                kIgnoredTarget);
      trained.engine.evaluate(batch);
    }
  }
  return trained.engine.evaluation_loss().dropped;
}

TEST_CASE("choices that an evaluation drops are counted") {
  CHECK(dropped_of_equal_scores(1.0) == 0.0);  // there is memory for twice the mean of 512
  CHECK(dropped_of_equal_scores(0.5) == 0.5);
  CHECK(dropped_of_equal_scores(0.25) == 0.75);
  CHECK(dropped_of_equal_scores(0.25, 32) == 0.5);  // rows behind the samples do not count
  CHECK(dropped_of_equal_scores(0.25, 16) == 0.0);
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

/// The gradient of the first router where its input is all ones and the logits of all are zero.
std::vector<float> router_gradient(const MoeSettings& moe, int64_t accumulation, bool masks,
                                   ExpertLoads* loads = nullptr) {
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
  fill("layers.1.mlp.router.weight", 0.0F);
  trained.engine.weights_changed();
  PartsOfBatch batch(masks);
  trained.engine.step([&] { return batch.next(4 / accumulation); }, 0, 0.0, true);
  if (loads != nullptr) {
    *loads = trained.engine.expert_loads();
  }
  return gradient_of(trained, "layers.0.mlp.router.weight");
}

TEST_CASE("both losses of a router and their gradients are those on paper") {
  const int64_t accumulation = GENERATE(1, 2, 4);
  const bool masks = GENERATE(false, true);
  CAPTURE(accumulation, masks);
  const MoeSettings without = {.capacity_factor = 2.0};
  ExpertLoads loads;
  const std::vector<float> base = router_gradient(without, accumulation, masks, &loads);
  CHECK_FALSE(loads.balance_loss);
  CHECK_FALSE(loads.z_loss);
  MoeSettings with = without;
  with.balance_loss = 0.5;
  const std::vector<float> balance = router_gradient(with, accumulation, masks, &loads);
  // Twice, of two layers: sum f p is 1, whatever is chosen where all scores are equal.
  CHECK(loads.balance_loss.value() == Approx(2 * 0.5).epsilon(1e-6));
  CHECK_FALSE(loads.z_loss);
  with.balance_loss = 0.0;
  with.z_loss = 0.25;
  const std::vector<float> z = router_gradient(with, accumulation, masks, &loads);
  CHECK(loads.z_loss.value() == Approx(2 * 0.25 * std::log(4.0) * std::log(4.0)).epsilon(1e-6));
  CHECK_FALSE(loads.balance_loss);
  // Scores p are 1/4, and experts 0 and 1 are chosen: f is 2, 2, 0, 0. d(sum f p)/d logit j is
  // p (f_j - sum f p), and d(log sum exp)^2 is 2 ln(4) p. The mean over tokens is that of one.
  for (size_t i = 0; i < base.size(); ++i) {
    const double sign = i / 32 < 2 ? 1.0 : -1.0;
    CHECK(balance[i] - base[i] == Approx(0.5 * sign * 0.25).epsilon(1e-4));
    CHECK(z[i] - base[i] == Approx(0.25 * 2 * std::log(4.0) * 0.25).epsilon(1e-4));
  }
}

TEST_CASE("capacities are larger in the first steps, and memory is planned for them") {
  EngineSettings settings = small_moe("te-delayed");
  settings.step.micro_batch_size = 32;  // 512 rows, 256 for an expert
  MoeSettings& moe = settings.step.decoder.moe;
  const DryRunStep small = dry_run_step(settings, {});
  const auto padding_of = [](TrainedEngine& trained) {
    trained.train(1);
    return trained.engine.expert_loads().padding;
  };
  moe.capacity_factor = 1.5;
  const DryRunStep large = dry_run_step(settings, {});
  TrainedEngine always(settings);
  const double first = padding_of(always);
  moe = {.capacity_factor = 1.0,
         .capacity_warmup = 2,
         .warmup_capacity_factor = 1.5,
         .balance_loss = moe.balance_loss,
         .z_loss = moe.z_loss};
  const DryRunStep dry_run = dry_run_step(settings, {});
  CHECK(dry_run.plan.saved_bytes == large.plan.saved_bytes);
  CHECK(dry_run.plan.scratch_bytes == large.plan.scratch_bytes);
  CHECK(dry_run.work.gemm_flops == small.work.gemm_flops);
  CHECK(large.work.gemm_flops > small.work.gemm_flops);
  TrainedEngine warming(settings);
  CHECK(padding_of(warming) == first);
  CHECK(same_bits(warming.weights(), always.weights()));
  CHECK(padding_of(warming) == padding_of(always));
  CHECK(same_bits(warming.weights(), always.weights()));
  CHECK(padding_of(warming) < padding_of(always));
  CHECK_FALSE(same_bits(warming.weights(), always.weights()));
}
