// Whole steps of models whose layers have plans of their own.

#include <catch2/catch.hpp>
#include <cstring>

#include "support/parameters.h"
#include "support/small_llama.h"
#include "train/dry_run.h"

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

/// The weights after four steps. Requires that no step allocates.
std::vector<float> trained(const EngineSettings& settings) {
  const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  Engine engine(*device, settings);
  engine.reserve(rehearse_step(settings, {}).plan);
  engine.model().initialize(3);
  engine.weights_changed();
  const uint64_t before = device->ledger().allocations();
  for (int64_t step = 0; step < 4; ++step) {
    uint64_t micro = 0;
    engine.step([&] { return random_batch(micro++); }, step, 1e-2F, false);
  }
  CHECK(device->ledger().allocations() == before);
  CHECK(engine.optimizer().report().skipped_steps == 0);
  return values_of(*device, engine.model().parameters());
}

bool equal(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST_CASE("a plan for all layers is that plan, where what is stored is the same") {
  const std::string plan = GENERATE("te-blockwise", "te-current", "int8-qat");
  CAPTURE(plan);
  const std::vector<float> own = trained(settings_of("te-delayed", {{"*", plan}}));
  PlanRequest request;
  request.plan = plan;
  request.cells.gradient_wire = "fp32";
  EngineSettings settings = small_llama(plan, 2);
  settings.plan = resolve_plan(request);
  CHECK(equal(own, trained(settings)));
  CHECK_FALSE(equal(own, trained(settings_of("te-delayed", {}))));
}

TEST_CASE("layers in bf16 are exempt layers") {
  const std::string plan = GENERATE("te-delayed", "msamp-o2", "deepseek-v3");
  CAPTURE(plan);
  CHECK(equal(trained(settings_of(plan, {{"layers.0.*", "bf16"}})),
              trained(settings_of(plan, {}, {"layers.0.*"}))));
}

TEST_CASE("emulated accumulation is for the GEMMs that may be fast, and changes their results") {
  PlanRequest request;
  request.plan = GENERATE("te-current", "torchao-rowwise");
  CAPTURE(request.plan);
  EngineSettings settings = small_llama(request.plan, 2);
  const std::vector<float> exact = trained(settings);
  request.accumulation = "emulated";
  settings.plan = resolve_plan(request);
  const std::vector<float> emulated = trained(settings);
  CHECK_FALSE(equal(exact, emulated));
  CHECK(equal(emulated, trained(settings)));
  settings.plan.fprop.emulate_accumulator = false;
  CHECK(equal(exact, trained(settings)));
}

TEST_CASE("plans of many kinds train side by side within the memory planned") {
  const std::vector<float> mixed =
      trained(settings_of("msamp-o2", {{"*.mlp.down", "te-blockwise"},
                                       {"*.mlp.up", "te-mxfp8"},
                                       {"layers.1.attention.qkv", "torchao-rowwise-gw-hp"},
                                       {"layers.1.attention.output", "int8-qat"}}));
  CHECK_FALSE(equal(mixed, trained(settings_of("msamp-o2", {}))));
}

}  // namespace
}  // namespace fp8train::test::layer_plans
