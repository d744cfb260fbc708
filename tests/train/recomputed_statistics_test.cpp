// Statistics of the input of a down projection that is made again in the backward pass
// (precision.recompute_swiglu): those of the input that is stored.

#include <catch2/catch.hpp>

#include "engine/dry_run.h"
#include "support/small_llama.h"

using namespace fp8train;

namespace {

struct Statistics {
  std::vector<uint64_t> counts;
  std::vector<double> samples;
};

/// Of each slot, in the order of the model.
Statistics statistics_of(bool recompute, const std::string& wgrad_x) {
  PlanRequest request;
  request.plan = "deepseek-v3";
  request.recompute_swiglu = recompute;
  request.roles.wgrad_x = wgrad_x;
  request.roles.saved_nonlinear = "bf16";  // of codes another input would be made
  EngineSettings settings = test::small_llama("deepseek-v3", 2);
  settings.plan = resolve_plan(request);
  const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  Engine engine(*device, settings);
  engine.reserve(dry_run_step(settings, {}).plan);
  engine.model().initialize(3);
  engine.weights_changed();
  uint64_t pass = 0;
  engine.step([&] { return test::random_batch(pass++); }, 0, 1e-3, true);
  Statistics found;
  size_t of_down = 0;
  for (const SlotReport& report : engine.model().scaling().report()) {
    CAPTURE(report.slot->layer, report.slot->role);
    found.counts.insert(found.counts.end(),
                        {report.statistics.saturated, report.statistics.underflow});
    found.samples.insert(found.samples.end(), {report.sample.signal, report.sample.noise,
                                               static_cast<double>(report.sample.amax)});
    if (report.slot->layer.ends_with("mlp.down") && report.slot->role == "x.wgrad") {
      ++of_down;
      CHECK(report.sample.amax > 0);
    }
  }
  CHECK(of_down == (wgrad_x.empty() ? 0 : 2));
  return found;
}

}  // namespace

TEST_CASE("an input that is made again has the statistics of one that is stored") {
  // Formats of its own, or those that fprop reads.
  const std::string wgrad_x = GENERATE("e4m3 1x128 current pow2", "");
  CAPTURE(wgrad_x);
  const Statistics stored = statistics_of(false, wgrad_x);
  const Statistics again = statistics_of(true, wgrad_x);
  CHECK(again.counts == stored.counts);
  CHECK(again.samples == stored.samples);
}
