// Whole steps of models whose layers have plans of their own.

#include "base/error.h"
#include "engine/dry_run.h"
#include "four_steps.h"
#include "support/files.h"

namespace fp8train::test::layer_plans {
namespace {

EngineSettings settings_of(const std::string& plan, std::vector<LayerRequest> layers,
                           std::vector<std::string> exempt = {}) {
  PlanRequest request;
  request.plan = plan;
  request.layers = std::move(layers);
  request.exemptions.patterns = std::move(exempt);
  EngineSettings settings = small_llama(plan, 2);
  settings.plan = resolve_plan(request);
  return settings;
}

std::vector<float> weights_of(const EngineSettings& settings) {
  return trained(settings).weights;
}

TEST_CASE("a plan for all layers is that plan, where what is stored is the same") {
  const std::string plan = GENERATE("te-blockwise", "te-current", "int8-qat");
  CAPTURE(plan);
  const std::vector<float> own = weights_of(settings_of("te-delayed", {{"*", plan}}));
  PlanRequest request;
  request.plan = plan;
  request.roles.gradient_wire = "fp32";
  EngineSettings settings = small_llama(plan, 2);
  settings.plan = resolve_plan(request);
  CHECK(same_bits(own, weights_of(settings)));
  CHECK_FALSE(same_bits(own, weights_of(settings_of("te-delayed", {}))));
}

TEST_CASE("layers in bf16 are exempt layers") {
  const std::string plan = GENERATE("te-delayed", "msamp-o2", "deepseek-v3");
  CAPTURE(plan);
  CHECK(same_bits(weights_of(settings_of(plan, {{"layers.0.*", "bf16"}})),
                  weights_of(settings_of(plan, {}, {"layers.0.*"}))));
}

TEST_CASE("emulated accumulation is for the GEMMs that may be fast, and changes their results") {
  PlanRequest request;
  request.plan = GENERATE("te-current", "torchao-rowwise");
  CAPTURE(request.plan);
  EngineSettings settings = small_llama(request.plan, 2);
  const std::vector<float> exact = weights_of(settings);
  request.accumulation = Accumulation::emulated;
  settings.plan = resolve_plan(request);
  const std::vector<float> emulated = weights_of(settings);
  CHECK_FALSE(same_bits(exact, emulated));
  CHECK(same_bits(emulated, weights_of(settings)));
  const DeviceTraits gpu = {.fp8_gemm_by_library = true};
  CHECK_THAT(message_of<DeviceError>([&] { dry_run_step(settings, gpu); }),
             Catch::Contains("fp8.accumulation: emulated is for device: cpu"));
  settings.plan.fprop.emulate_accumulator = false;
  CHECK(same_bits(exact, weights_of(settings)));
}

TEST_CASE("plans of many kinds train side by side within the memory planned") {
  const std::vector<float> mixed =
      weights_of(settings_of("msamp-o2", {{"*.mlp.down", "te-blockwise"},
                                          {"*.mlp.up", "te-mxfp8"},
                                          {"layers.1.attention.qkv", "torchao-rowwise-gw-hp"},
                                          {"layers.1.attention.output", "int8-qat"}}));
  CHECK_FALSE(same_bits(mixed, weights_of(settings_of("msamp-o2", {}))));
}

}  // namespace
}  // namespace fp8train::test::layer_plans
