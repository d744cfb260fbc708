// Whole steps in NVFP4: its casts to dy draw other random bits in each micro-batch, and the same
// ones where a run continues.

#include <catch2/catch.hpp>

#include <cmath>
#include <memory>
#include <vector>

#include "four_steps.h"
#include "support/parameters.h"

namespace fp8train::test::nvfp4 {
namespace {

struct Trained {
  std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  Engine engine;

  explicit Trained(const EngineSettings& settings) : engine(*device, settings) {
    engine.reserve(dry_run_step(settings, {}).plan);
    engine.model().initialize(3);
    engine.weights_changed();
  }
  /// One batch, over and over: what is learnt by heart.
  double learn(int64_t steps) {
    for (int64_t step = 0; step < steps; ++step) {
      engine.step([&] { return random_batch(1); }, step, 1e-2F, false);
    }
    return engine.step_loss().mean;
  }
  /// The gradients of one step on one batch.
  std::vector<float> gradients(int64_t step) {
    engine.step([&] { return random_batch(1); }, step, 0.0F, false);
    return gradients_of(*device, engine.model().parameters());
  }
};

EngineSettings with_roles(const RoleRequest& roles) {
  PlanRequest request;
  request.plan = "te-nvfp4";
  request.roles = roles;
  EngineSettings settings = small_llama("te-nvfp4");
  settings.plan = resolve_plan(request);
  return settings;
}

TEST_CASE("a model learns a batch in NVFP4 nearly as in bf16") {
  const double bf16 = Trained(small_llama("bf16")).learn(30);
  Trained run(small_llama("te-nvfp4"));
  const uint64_t before = run.device->ledger().allocations();
  const double loss = run.learn(30);
  CHECK(loss < 0.5 * std::log(50.0));  // chance is log 50
  CHECK(loss == Approx(bf16).margin(0.3));
  CHECK(run.device->ledger().allocations() == before);
  CHECK(run.engine.optimizer().control().skipped_steps == 0);
}

TEST_CASE("random bits follow from seed, step and micro-batch alone") {
  EngineSettings settings = small_llama("te-nvfp4", 2);
  const std::vector<float> first = Trained(settings).gradients(5);
  CHECK(same_bits(first, Trained(settings).gradients(5)));
  CHECK_FALSE(same_bits(first, Trained(settings).gradients(6)));
  settings.step.seed += 1;
  CHECK_FALSE(same_bits(first, Trained(settings).gradients(5)));
  // Two micro-batches of one batch: with the bits of the first in both, pass 10, their gradient
  // would be that of it once.
  CHECK_FALSE(same_bits(first, Trained(small_llama("te-nvfp4")).gradients(10)));
  const EngineSettings nearest =
      with_roles({.dgrad_dy = "e2m1 1x16 e4m3", .wgrad_dy = "e2m1 1x16 e4m3 hadamard"});
  CHECK(same_bits(Trained(nearest).gradients(5), Trained(nearest).gradients(6)));
}

TEST_CASE("the Hadamard transform changes roundings of the weight gradient only") {
  const RoleRequest to_nearest = {
      .dgrad_dy = "e2m1 1x16 e4m3", .wgrad_dy = "e2m1 1x16 e4m3", .wgrad_x = "e2m1 1x16 e4m3"};
  RoleRequest transformed = to_nearest;
  transformed.wgrad_dy = transformed.wgrad_x = "e2m1 1x16 e4m3 hadamard";
  Trained plain(with_roles(to_nearest));
  Trained hadamard(with_roles(transformed));
  const std::vector<float> a = plain.gradients(0);
  const std::vector<float> b = hadamard.gradients(0);
  CHECK(plain.engine.step_loss().mean == hadamard.engine.step_loss().mean);
  CHECK_FALSE(same_bits(a, b));
  double difference = 0;
  double size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    size += double{a[i]} * a[i];
  }
  CHECK(std::sqrt(difference / size) <
        0.25);  // of four bits on both sides; 2 without orthogonality
}

TEST_CASE("all operands may be transformed") {
  const std::string x = "e2m1 1x16 e4m3 hadamard";
  Trained run(with_roles(
      {.fprop_x = x, .fprop_w = x, .dgrad_dy = x, .dgrad_w = x, .wgrad_dy = x, .wgrad_x = x}));
  CHECK(run.learn(30) < 0.5 * std::log(50.0));
}

TEST_CASE("a model learns a batch in MXFP4, with 4over6, with scales of rows, straight through") {
  const std::string four = "e2m1 16x16 e4m3_4over6";
  const std::string by_row = "e2m1 1x16 e4m3 row_scaled";
  const std::string vector = "e2m1 1x16 e4m3";
  const EngineSettings all[] = {small_llama("torchao-mxfp4"),
                                with_roles({.fprop_w = four, .dgrad_w = four}),
                                with_roles({.fprop_x = by_row,
                                            .fprop_w = by_row,
                                            .dgrad_w = by_row,
                                            .wgrad_dy = vector,
                                            .wgrad_x = by_row}),
                                with_roles({.fprop_x = by_row,
                                            .fprop_w = vector,
                                            .dgrad_dy = "bf16",
                                            .dgrad_w = vector,
                                            .wgrad_dy = "bf16",
                                            .wgrad_x = by_row})};
  for (const EngineSettings& settings : all) {
    INFO(describe(settings.plan.fprop.a) << ", " << describe(settings.plan.fprop.b));
    Trained run(settings);
    const uint64_t before = run.device->ledger().allocations();
    CHECK(run.learn(30) < 0.5 * std::log(50.0));
    CHECK(run.device->ledger().allocations() == before);
  }
}

TEST_CASE("an infinity in the activations of NVFP4 makes the step a skipped one") {
  Trained run(small_llama("te-nvfp4"));
  for (const auto& parameter : run.engine.model().parameters().all()) {
    if (parameter->name == "layers.0.attention.qkv.weight") {
      std::vector<float> values = test::value_on_host(*run.device, *parameter);
      values.back() = INFINITY;
      set_value(*run.device, *parameter, values.data());
    }
  }
  run.engine.weights_changed();
  run.learn(1);
  CHECK(run.engine.optimizer().control().skipped_steps == 1);
}

}  // namespace
}  // namespace fp8train::test::nvfp4
