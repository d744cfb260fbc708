#pragma once
// Four steps of an engine, for tests that compare runs by their weights.

#include <catch2/catch.hpp>
#include <memory>
#include <vector>

#include "engine/dry_run.h"
#include "support/parameters.h"
#include "support/small_llama.h"

namespace fp8train::test {

struct Trained {
  std::vector<float> weights;
  double evaluation = 0;
};

/// Four steps and an evaluation. Requires that they stay within the memory that was planned.
inline Trained trained(const EngineSettings& settings) {
  const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  Engine engine(*device, settings);
  engine.reserve(dry_run_step(settings, {}).plan);
  engine.model().initialize(3);
  engine.weights_changed();
  const uint64_t before = device->ledger().allocations();
  for (int64_t step = 0; step < 4; ++step) {
    uint64_t micro = 0;
    engine.step([&] { return random_batch(micro++); }, step, 1e-2F, step == 2);
  }
  engine.begin_evaluation();
  engine.evaluate(random_batch(77));
  CHECK(device->ledger().allocations() == before);
  CHECK(engine.optimizer().control().skipped_steps == 0);
  return {values_of(*device, engine.model().parameters()), engine.evaluation_loss().mean};
}

}  // namespace fp8train::test
