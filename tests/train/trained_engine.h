#pragma once
// An engine of the small model on the cpu, as tests train it.

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/dry_run.h"
#include "engine/engine.h"
#include "support/parameters.h"
#include "support/small_llama.h"

namespace fp8train::test {

struct TrainedEngine {
  std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  Engine engine;
  int64_t step = 0;
  bool spoils_gradients = false;  ///< before each step

  explicit TrainedEngine(const EngineSettings& settings) : engine(*device, settings) {
    engine.reserve(dry_run_step(settings, {}).plan);
    engine.model().initialize(3);
    engine.weights_changed();
  }
  void train(int64_t steps, bool statistics = false) {
    for (int64_t i = 0; i < steps; ++i, ++step) {
      if (spoils_gradients) {
        test::fill_gradients_with_nan(*device, engine.model().parameters());
      }
      uint64_t micro = 0;
      engine.step(
          [&] {
            return test::random_batch(static_cast<uint64_t>(step) * 8 + micro++,
                                      engine.settings().step.micro_batch_size);
          },
          step, 1e-3F, statistics);
    }
  }
  std::vector<float> weights() { return test::values_of(*device, engine.model().parameters()); }
};

inline Parameter& named(Engine& engine, const std::string& name) {
  for (const auto& parameter : engine.model().parameters().all()) {
    if (parameter->name == name) {
      return *parameter;
    }
  }
  throw std::invalid_argument("no parameter " + name);
}

inline std::vector<float> gradient_of(TrainedEngine& engine, const std::string& name) {
  return gradient_of(*engine.device, named(engine.engine, name));
}

}  // namespace fp8train::test
