#include "train/records/speed_limits.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "engine/dry_run.h"
#include "engine/roofline.h"
#include "model/model_config.h"
#include "support/small_llama.h"
#include "support/small_moe.h"

namespace fp8train {
namespace {

SpeedLimits of_cpu(const Topology& ranks = {}) {
  return {DeviceKind::cpu, make_device(DeviceKind::cpu)->traits(), nullptr, ranks};
}

/// The FLOPs of the predicted step.
double predicted_flops(const EngineSettings& settings, const Topology& ranks = {},
                       const std::vector<double>& idle = {}) {
  SpeedLimits limits = of_cpu(ranks);
  limits.measure(settings.plan.activation, 1.0);
  return limits.step_seconds(settings, idle).value() * limits.flops_per_second().value();
}

double flops_on_paper(const EngineSettings& settings) {
  const auto tokens = static_cast<double>(settings.step.tokens());
  return tokens * flops_per_token(settings.model, settings.step.seq_length);
}

}  // namespace

TEST_CASE("the rate of products is known after each size was timed") {
  const auto device = make_device(DeviceKind::cpu);
  GemmRate rate(*device, DType::f32, {64, 128});
  CHECK(rate.flops_per_second() == 0);
  rate.measure();
  CHECK(rate.samples() == 0);
  CHECK(rate.flops_per_second() > 0);
  rate.measure();
  CHECK(rate.samples() == 1);
  // No product is faster than the time of all measurements allows.
  CHECK(rate.flops_per_second() > 2.0 * 64 * 64 * 64 / rate.seconds());
}

TEST_CASE("a step on a CPU is predicted to have the FLOPs that the model has on paper") {
  for (const int64_t accumulation : {1, 5}) {
    EngineSettings settings = test::small_llama("bf16", accumulation);
    settings.model.vocab_size = 64;  // not padded
    // Attention on paper lacks half of the diagonal.
    CHECK(predicted_flops(settings) == Approx(flops_on_paper(settings)).epsilon(0.01));
  }
}

TEST_CASE("recomputation and unused rows of experts count in the predicted step") {
  EngineSettings settings = test::small_llama("bf16");
  const double whole = predicted_flops(settings);
  settings.step.decoder.recompute = Recompute::block;
  CHECK(predicted_flops(settings) > 1.2 * whole);
  EngineSettings moe = test::small_moe("bf16");
  const double few = predicted_flops(moe);
  moe.step.decoder.moe.capacity_factor = 4;
  CHECK(predicted_flops(moe) > 1.2 * few);
}

TEST_CASE("the predicted step has scales and the capacity after a warm-up") {
  EngineSettings moe = test::small_moe("te-delayed");
  const double later = predicted_flops(moe);
  moe.step.decoder.moe.capacity_warmup = 10;
  moe.step.decoder.moe.warmup_capacity_factor = 4;
  CHECK(predicted_flops(moe) == later);
  const GpuKind& h100 = *find_gpu_kind("h100");
  const auto seconds = [&](const EngineSettings& settings) {
    return SpeedLimits(DeviceKind::cuda, traits_of(h100), &h100, {}).step_seconds(settings, {});
  };
  EngineSettings first_plain = test::small_llama("te-delayed");
  const std::optional<double> scaled = seconds(first_plain);
  first_plain.plain_steps = {{0, 5}};
  CHECK(seconds(first_plain) == scaled);
}

TEST_CASE("the pipeline stage that is longest with its idle time decides") {
  EngineSettings settings = test::small_llama("bf16", 4);
  const double whole = predicted_flops(settings);
  settings.strategy.layout.pipeline = 2;
  const auto ranks = Topology::blocks(2, 2);
  const double longest = predicted_flops(settings, ranks);
  CHECK(longest > 0.49 * whole);
  CHECK(longest < whole);
  CHECK(predicted_flops(settings, ranks, {0.5, 0.5}) == Approx(2 * longest));
  CHECK(predicted_flops(settings, ranks, {0.9, 0.9}) == Approx(10 * longest));
}

TEST_CASE("a GPU has the rate that its maker states, and nothing is known of another one") {
  const GpuKind& h100 = *find_gpu_kind("h100");
  const EngineSettings settings = test::small_llama("te-delayed");
  SpeedLimits known(DeviceKind::cuda, traits_of(h100), &h100, {});
  known.measure(DType::bf16, 1.0);
  CHECK(known.flops_per_second() == h100.tera_flops_16bit * 1e12);
  const DryRunStep step = logged_step(settings, traits_of(h100));
  CHECK(known.step_seconds(settings, {}).value() ==
        Approx(model_step(step.calls, settings, StepRates(h100)).step.seconds));
  // Another plan is another step.
  EngineSettings other = settings;
  other.plan = plan_named("bf16");
  CHECK(known.step_seconds(other, {}).value() != known.step_seconds(settings, {}).value());
  SpeedLimits unknown(DeviceKind::cuda, traits_of(h100), nullptr, {});
  unknown.measure(DType::bf16, 1.0);
  CHECK_FALSE(unknown.flops_per_second());
  CHECK_FALSE(unknown.step_seconds(settings, {}));
}

}  // namespace fp8train
