// Muon whose work ranks share by whole parameters (ZeRO 1): the bits of replicas, states that one
// rank alone has, and checkpoints that any number of ranks reads.

#include <catch2/catch.hpp>

#include <set>

#include "base/error.h"
#include "config/load.h"
#include "engine/dry_run.h"
#include "support/parameters.h"
#include "support/rank_threads.h"
#include "support/small_llama.h"
#include "support/temp_dir.h"
#include "train/checkpoint/optimizer_state.h"
#include "train/ranks.h"
#include "train/saved_states.h"
#include "train/session.h"

using namespace fp8train;

namespace {

namespace fs = std::filesystem;

EngineSettings settings_of(const std::string& plan, int stage, const char* momentum = nullptr) {
  EngineSettings settings = test::small_llama(plan, 2);
  if (momentum != nullptr) {
    settings.plan.moment1 = parse_format(momentum);
  }
  settings.optimizer.name = "muon";
  settings.strategy.bucket_bytes = 4096;
  settings.strategy.zero_stage = stage;
  return settings;
}

struct Result {
  std::vector<float> weights;
  std::vector<double> losses;
  size_t state_bytes = 0;
  std::set<std::string> states;  ///< of this rank
  bool as_planned = true;
};

using Body = std::function<void(Engine&, Communicator&)>;

std::vector<Result> run(const EngineSettings& settings, int ranks, const Body& before,
                        const Body& after) {
  std::vector<Result> results(static_cast<size_t>(ranks));
  const auto errors = test::run_ranks(Topology::blocks(ranks, ranks), [&](Communicator& comm) {
    const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
    Engine engine(*device, settings, &comm);
    const DryRunStep dry_run = dry_run_step(settings, DeviceTraits{}, comm.topology(), comm.rank());
    engine.reserve(dry_run.plan);
    engine.model().initialize(3);
    engine.weights_changed();
    if (before) {
      before(engine, comm);
    }
    Result& result = results[static_cast<size_t>(comm.rank())];
    for (int64_t step = 0, pass = 0; step < 3; ++step) {
      engine.step(
          [&] { return test::random_batch(static_cast<uint64_t>(pass++ * ranks + comm.rank())); },
          step, 1e-2, true);
      result.losses.push_back(engine.step_loss().mean);
    }
    for (size_t i = 0; i < kMemoryCategories; ++i) {
      const auto category = static_cast<MemoryCategory>(i);
      result.as_planned = result.as_planned &&
                          dry_run.memory.current(category) == device->ledger().current(category);
    }
    result.weights = test::values_of(engine);
    result.state_bytes = device->ledger().current(MemoryCategory::optimizer_state);
    OptimizerFile file;
    refresh_optimizer_file(engine, file);
    for (const auto& tensor : file.file.tensors) {
      result.states.insert(tensor.name);
    }
    if (after) {
      after(engine, comm);
    }
  });
  CHECK(errors == std::vector<std::string>(errors.size()));
  return results;
}

Body save_to(const fs::path& root) {
  return [root](Engine& engine, Communicator& comm) { test::save(root, engine, comm); };
}

Body load_from(const fs::path& root) {
  return [root](Engine& engine, Communicator& /*comm*/) {
    load_optimizer_files(root / "step-000001", engine);
  };
}

}  // namespace

TEST_CASE("only ranks that repeat each other's products must not tune them") {
  LoadRequest request;
  request.path = "run.yaml";
  const auto open = [&request](const char* stage, int ranks, const char* tensor = "1") {
    request.text = std::string(
                       "model: {preset: toy}\ndata: {train: a.txt, seq_length: 64}\n"
                       "training: {max_steps: 8}\noptimizer: {name: muon}\ngemm_tuning: true\n"
                       "parallelism: {zero_stage: ") +
                   stage + ", tensor: " + tensor + "}\n";
    open_session(load_settings(request), false, ranks);
  };
  CHECK_THROWS_WITH(open("0", 2), Catch::Contains(": gemm_tuning: with optimizer.name muon"));
  CHECK_NOTHROW(open("1", 2));
  CHECK_THROWS_WITH(open("1", 2, "2"), Catch::Contains("set gemm_tuning: false"));
  CHECK_NOTHROW(open("0", 1));
}

TEST_CASE("ranks that share muon's work by whole parameters have the bits of replicas") {
  const std::string plan = GENERATE("fp32", "bf16", "te-delayed", "te-current", "deepseek-v3");
  const int ranks = GENERATE(2, 3);
  CAPTURE(plan, ranks);
  const Result whole = run(settings_of(plan, 0), ranks, {}, {})[0];
  const std::vector<Result> shared = run(settings_of(plan, 1), ranks, {}, {});
  std::set<std::string> all;
  size_t states = 0;
  for (const Result& rank : shared) {
    CHECK(rank.weights == whole.weights);
    CHECK(rank.losses == whole.losses);
    CHECK(rank.as_planned);
    CHECK(static_cast<double>(rank.state_bytes) < 0.75 * static_cast<double>(whole.state_bytes));
    all.insert(rank.states.begin(), rank.states.end());
    states += rank.states.size();
  }
  CHECK(all == whole.states);
  CHECK(states == all.size());  // each with one rank
}

TEST_CASE("muon's states that ranks have saved are read by any number of ranks, shared or not") {
  const test::TempDir dir;
  const char* const momentum = GENERATE("fp32", "e4m3 tensor current", "e4m3 group(128) expanded");
  const auto continued = [&](const char* saved, int ranks, int stage) {
    return run(settings_of("te-current", stage, momentum), ranks, load_from(dir / saved), {})[0];
  };
  for (const Result& rank :
       run(settings_of("te-current", 1, momentum), 3, {}, save_to(dir / "shared"))) {
    CHECK(rank.as_planned);
  }
  run(settings_of("te-current", 0, momentum), 3, {}, save_to(dir / "whole"));
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    const Result want = continued("whole", ranks, 0);
    CHECK(continued("shared", ranks, 0).weights == want.weights);
    if (ranks > 1) {
      CHECK(continued("shared", ranks, 1).weights == want.weights);
      CHECK(continued("whole", ranks, 1).weights == want.weights);
    }
  }
}
