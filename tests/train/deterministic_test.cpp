// training.deterministic on the cuda device, whose cuDNN is the shim's fake. Only in the SHIM form.

#include <catch2/catch.hpp>
#include <memory>

#include "cudnn_fake.h"
#include "device/device.h"
#include "engine/dry_run.h"
#include "engine/engine.h"
#include "support/small_llama.h"

namespace fp8train {
namespace {

struct Planned {
  size_t scratch_bytes;
  uint64_t plans, deterministic_plans;
};

Planned planned(bool deterministic) {
  EngineSettings settings = test::small_llama("bf16");
  settings.step.deterministic = deterministic;
  const std::unique_ptr<Device> device = make_device(DeviceKind::cuda);
  const uint64_t plans = shim::sdpa_plans();
  const uint64_t deterministic_plans = shim::deterministic_sdpa_plans();
  const StepPlan plan = dry_run_step(settings, *device).plan;
  return {plan.scratch_bytes, shim::sdpa_plans() - plans,
          shim::deterministic_sdpa_plans() - deterministic_plans};
}

TEST_CASE("a run is as deterministic as it asks for, and plans the memory for it", "[cuda]") {
  shim::set_sdpa_workspace(size_t{1} << 20);  // more than any layer's scratch
  const Planned fast = planned(false);
  const Planned deterministic = planned(true);
  shim::set_sdpa_workspace(4096);
  CHECK(fast.plans > 0);
  CHECK(fast.deterministic_plans == 0);
  CHECK(deterministic.plans == fast.plans);
  CHECK(deterministic.deterministic_plans == deterministic.plans);
  CHECK(deterministic.scratch_bytes > fast.scratch_bytes);
}

}  // namespace
}  // namespace fp8train
