// Optimizer states and master weights in memory of the host: the same bits, less memory of the
// device by exactly what has moved, and a step whose update takes the time of the link.

#include <catch2/catch.hpp>

#include <string>

#include "device/gpu_kinds.h"
#include "engine/roofline.h"
#include "precision/plans.h"
#include "rank_results.h"
#include "trained_engine.h"

using namespace fp8train;

namespace {

EngineSettings offloaded(EngineSettings settings) {
  settings.optimizer.offloads = true;
  return settings;
}

MemoryLedger ledger_of(const EngineSettings& settings, int ranks = 1) {
  return dry_run_step(settings, DeviceTraits{}, Topology::blocks(ranks, ranks)).memory;
}

}  // namespace

TEST_CASE("states and masters in the host's memory change no bit") {
  const std::string plan = GENERATE(from_range(plan_names()));
  CAPTURE(plan);
  const EngineSettings settings = test::small_llama(plan);
  test::TrainedEngine on_device(settings);
  test::TrainedEngine on_host(offloaded(settings));
  on_device.train(3);
  on_host.train(3);
  CHECK(on_host.weights() == on_device.weights());
  const MemoryLedger& all = on_device.device->ledger();
  const MemoryLedger& rest = on_host.device->ledger();
  const size_t moved = rest.current(MemoryCategory::offloaded);
  CHECK(all.total() - rest.total() == moved);
  CHECK(rest.current(MemoryCategory::optimizer_state) == sizeof(ops::StepControl));
  CHECK(moved >= all.current(MemoryCategory::optimizer_state) - sizeof(ops::StepControl));
  CHECK(ledger_of(offloaded(settings)).current(MemoryCategory::offloaded) == moved);
}

TEST_CASE("every optimizer's states are moved, and no bit changes") {
  EngineSettings settings = test::small_llama("bf16");
  settings.optimizer.name = GENERATE("adamw", "sgd", "muon");
  CAPTURE(settings.optimizer.name);
  test::TrainedEngine on_device(settings);
  test::TrainedEngine on_host(offloaded(settings));
  on_device.train(3);
  on_host.train(3);
  CHECK(on_host.weights() == on_device.weights());
  CHECK(on_host.device->ledger().current(MemoryCategory::offloaded) > 0);
}

TEST_CASE("masters that only the optimizer reads are moved") {
  // The embedding and the norms are read in fp32; the head is the master of its copy.
  const EngineSettings settings = test::small_llama("bf16");
  const size_t masters = ledger_of(settings).current(MemoryCategory::master_weights);
  CHECK(masters > 0);
  CHECK(ledger_of(offloaded(settings)).current(MemoryCategory::master_weights) == 0);
}

TEST_CASE("ranks that share the optimizer's work have their parts of it in the host's memory") {
  EngineSettings settings = test::tiny(GENERATE("bf16", "te-delayed", "msamp-o2", "coat"), 2);
  settings.strategy.zero_stage = GENERATE(0, 1, 2, 3);
  CAPTURE(settings.plan.name, settings.strategy.zero_stage);
  const Topology topology = Topology::blocks(2, 2);
  const auto on_device = test::train_ranks(settings, topology);
  const auto on_host = test::train_ranks(offloaded(settings), topology);
  for (size_t rank = 0; rank < 2; ++rank) {
    CHECK(on_host[rank].weights == on_device[rank].weights);
    CHECK(on_host[rank].as_planned);
    CHECK(on_host[rank].bytes < on_device[rank].bytes);
  }
}

TEST_CASE("an update through the link takes the time of its bytes", "[roofline]") {
  const GpuKind& gpu = *find_gpu_kind("h100");
  const StepRates rates(gpu);
  const EngineSettings settings = test::small_llama("bf16");
  const auto update = [&](const EngineSettings& of) {
    double on_host = 0;
    double seconds = 0;
    for (const OpCall& call : logged_step(of, traits_of(gpu)).calls) {
      on_host += call.work.bytes.on_host;
      seconds += roofline(call.work, rates).seconds;
    }
    return std::pair(on_host, seconds);
  };
  const auto [none, before] = update(settings);
  const auto [moved, after] = update(offloaded(settings));
  CHECK(none == 0);
  // Both moments in fp32 are read and written, and the master, which is a part of the parameters.
  const auto state =
      static_cast<double>(ledger_of(settings).current(MemoryCategory::optimizer_state));
  CHECK(moved > 1.9 * state);
  CHECK(moved < 3.1 * state);
  CHECK(after > before);
  CHECK(roofline({.bytes = {2e9, 1e9}}, rates).seconds ==
        Approx(1e9 / (gpu.host_rate * 1e9 * rates.shares.wire)).epsilon(1e-3));
}
