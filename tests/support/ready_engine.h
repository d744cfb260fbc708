#pragma once
// An engine on the cpu that is ready to train: with the memory of its dry run, and initial weights.

#include <memory>

#include "engine/dry_run.h"
#include "engine/engine.h"

namespace fp8train::test {

class ReadyEngine {
 public:
  /// `comm` null: one rank.
  ReadyEngine(const EngineSettings& settings, Communicator* comm)
      : dry_run(dry_run_step(settings, {}, comm == nullptr ? Topology() : comm->topology(),
                             comm == nullptr ? 0 : comm->rank())),
        device(make_device(DeviceKind::cpu)),
        engine(*device, settings, comm) {
    engine.reserve(dry_run.plan);
    engine.model().initialize(3);
    engine.weights_changed();
  }

  /// Whether the engine has the memory of each category that was planned.
  bool is_as_planned() const {
    bool all = true;
    for (size_t i = 0; i < kMemoryCategories; ++i) {
      const auto category = static_cast<MemoryCategory>(i);
      all = all && dry_run.memory.current(category) == device->ledger().current(category);
    }
    return all;
  }

  const DryRunStep dry_run;
  const std::unique_ptr<Device> device;
  Engine engine;
};

}  // namespace fp8train::test
