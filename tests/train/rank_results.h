#pragma once
// Engines of the small model on several ranks, each on a thread: what a few steps leave.

#include <catch2/catch.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/dry_run.h"
#include "support/parameters.h"
#include "support/rank_threads.h"
#include "support/small_llama.h"

namespace fp8train::test {

constexpr int64_t kSteps = 3;

inline EngineSettings tiny(const std::string& plan, int64_t passes) {
  EngineSettings settings = test::small_llama(plan, passes);
  settings.strategy.bucket_bytes = 4096;
  return settings;
}

struct RankResult {
  std::vector<float> weights;
  std::vector<float> delayed_scales;  // histories and all
  std::vector<float> own_scales;      // of AmaxReduction::none
  std::vector<double> losses, norms;
  int64_t skipped = 0;
  bool allocated = false;
  bool as_planned = true;  // memory, in each category, to the byte
  size_t bytes = 0;        // of the optimizer's state
};

/// `passes` micro-batches a step. `spoil`: called before each step but the first.
inline RankResult train(const EngineSettings& settings, Communicator* comm,
                        const std::function<void(Engine&)>& spoil = {},
                        const DeviceTraits& traits = {}, int64_t steps = kSteps) {
  const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  device->set_traits(traits);
  Engine engine(*device, settings, comm);
  const int ranks = engine.mesh().world_size();
  const int rank = comm == nullptr ? 0 : comm->rank();
  const DryRunStep dry_run =
      dry_run_step(settings, traits, comm == nullptr ? Topology() : comm->topology(), rank);
  engine.reserve(dry_run.plan);
  engine.model().initialize(3);
  engine.weights_changed();
  const uint64_t allocations = device->ledger().allocations();
  RankResult result;
  for (int64_t step = 0, pass = 0; step < steps; ++step) {
    if (spoil && step > 0) {
      spoil(engine);
    }
    engine.step([&] { return test::random_batch(static_cast<uint64_t>(pass++ * ranks + rank)); },
                step, 1e-3, true);
    result.losses.push_back(engine.step_loss().mean);
    result.norms.push_back(engine.optimizer().control().gradient_norm);
  }
  result.allocated = device->ledger().allocations() != allocations;
  for (size_t i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    result.as_planned =
        result.as_planned && dry_run.memory.current(category) == device->ledger().current(category);
  }
  result.skipped = engine.optimizer().control().skipped_steps;
  for (const auto& saved : engine.model().scaling().save()) {
    if (saved.name.ends_with(".amax")) {
      continue;  // of new weights: found when they are cast, by some at the next step's start
    }
    std::vector<float>& scales = saved.of_rank ? result.own_scales : result.delayed_scales;
    scales.insert(scales.end(), saved.values.begin(), saved.values.end());
  }
  result.weights = test::values_of(engine);
  result.bytes = device->ledger().current(MemoryCategory::optimizer_state);
  return result;
}

inline std::vector<RankResult> train_ranks(const EngineSettings& settings, const Topology& topology,
                                           const std::function<void(Engine&)>& spoil_first = {},
                                           const DeviceTraits& traits = {}) {
  std::vector<RankResult> results(static_cast<size_t>(topology.size()));
  const std::vector<std::string> errors = test::run_ranks(topology, [&](Communicator& comm) {
    results[static_cast<size_t>(comm.rank())] =
        train(settings, &comm, comm.rank() == 0 ? spoil_first : nullptr, traits);
  });
  for (const std::string& error : errors) {
    CAPTURE(error);
    CHECK(error.empty());
  }
  return results;
}

}  // namespace fp8train::test
