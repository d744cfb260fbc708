// What ranks agree on before they train, and while they wait for each other.

#include <catch2/catch.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "base/philox.h"
#include "comm/backends/backends.h"
#include "device/cuda/cuda_device.h"
#include "train/rank_device.h"
#include "train/rank_results.h"
#include "train/ranks.h"

using namespace fp8train;
using test::kSteps;
using test::RankResult;
using test::same_bits;
using test::tiny;
using test::train;
using test::train_ranks;

TEST_CASE("ranks load kernels at their start, unless the user says otherwise") {
  constexpr const char* kVariable = "CUDA_MODULE_LOADING";
  Settings settings;
  settings.device = DeviceChoice::cpu;
  const auto after = [&](const Topology& topology, const char* before) {
    before == nullptr ? ::unsetenv(kVariable) : ::setenv(kVariable, before, 1);
    take_device(settings, *make_dry_run(topology, 0));
    const char* const set = std::getenv(kVariable);
    const std::string found = set == nullptr ? "" : set;
    ::unsetenv(kVariable);
    return found;
  };
  CHECK(after({}, nullptr).empty());
  CHECK(after(Topology::blocks(2, 2), nullptr) == "EAGER");
  CHECK(after(Topology::blocks(2, 2), "LAZY") == "LAZY");
}

TEST_CASE("NCCL's buffers are part of the plan of a rank on a GPU") {
  const EngineSettings settings = tiny("bf16", 1);
  const auto planned = [&](const DeviceTraits& traits, const Topology& ranks) {
    return dry_run_step(settings, traits, ranks);
  };
  const DeviceTraits gpu = cuda_traits(90, size_t{80} << 30);
  const DryRunStep two = planned(gpu, Topology::blocks(2, 2));
  const DryRunStep cpus = planned({}, Topology::blocks(2, 2));
  CHECK(two.nccl_bytes == size_t{1} << 30);
  CHECK(two.memory.current(MemoryCategory::communication) ==
        two.nccl_bytes + cpus.memory.current(MemoryCategory::communication));
  CHECK(cpus.nccl_bytes == 0);
  CHECK(planned(gpu, {}).nccl_bytes == 0);
}

TEST_CASE("a dry run sends what an ordinary one does") {
  const int stage = GENERATE(0, 1, 3);
  const bool has_stages = GENERATE(false, true);
  CAPTURE(stage, has_stages);
  EngineSettings settings = tiny("torchao-rowwise", has_stages ? 9 : 1);
  settings.strategy.zero_stage = stage;
  if (has_stages) {
    settings.model.num_hidden_layers = 8;  // of which stage 3 gathers others in another order
    settings.strategy.layout = {.pipeline = 2, .schedule = ScheduleKind::zero_bubble};
  }
  const int ranks = has_stages ? 4 : 2;
  const std::vector<std::string> errors =
      test::run_ranks(Topology::blocks(ranks, ranks), [&](Communicator& comm) {
        const DryRunStep dry_run = dry_run_step(settings, {}, comm.topology(), comm.rank());
        const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
        Engine engine(*device, settings, &comm);
        engine.reserve(dry_run.plan);
        engine.model().initialize(3);
        engine.weights_changed();
        uint64_t sent = 0;
        for (int64_t step = 0; step < 3; ++step) {
          const uint64_t before = comm.traffic().total();
          engine.step([] { return test::random_batch(1); }, step, 1e-3, false);
          sent = comm.traffic().total() - before;
        }
        check(sent == dry_run.sent.total(), "bytes as in the dry run");
      });
  CHECK(errors == std::vector<std::string>(static_cast<size_t>(ranks)));
}

TEST_CASE("the rank's own part may stay exact, and crosses in the plan's format all the same") {
  EngineSettings settings = tiny("fp8-safe", 1);
  const auto traffic = [&] {
    uint64_t bytes = 0;
    const std::vector<std::string> errors =
        test::run_ranks(Topology::blocks(2, 2), [&](Communicator& comm) {
          train(settings, &comm);
          if (comm.rank() == 0) {
            bytes = comm.traffic().total();
          }
        });
    CHECK(errors == std::vector<std::string>(2));
    return bytes;
  };
  const uint64_t rounded = traffic();
  settings.plan.self_exact = true;
  CHECK(traffic() == rounded);
}

TEST_CASE("all ranks start from the first one's weights, bit for bit") {
  const std::string plan = GENERATE("fp32", "msamp-o2", "fp8-min");
  CAPTURE(plan);
  std::vector<std::vector<float>> weights(3);
  const std::vector<std::string> errors =
      test::run_ranks(Topology::blocks(3, 2), [&](Communicator& comm) {
        const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
        Engine engine(*device, tiny(plan, 1), &comm);
        engine.model().initialize(static_cast<uint64_t>(comm.rank()));
        share_weights(engine.mesh(), *device, engine.model().parameters());
        weights[static_cast<size_t>(comm.rank())] =
            test::values_of(*device, engine.model().parameters());
      });
  CHECK(errors == std::vector<std::string>(3));
  CHECK(same_bits(weights[0], weights[1]));
  CHECK(same_bits(weights[0], weights[2]));
  CHECK(same_bits(weights[0], [&] {
    const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
    Engine engine(*device, tiny(plan, 1));
    engine.model().initialize(0);
    return test::values_of(*device, engine.model().parameters());
  }()));
}

TEST_CASE("ranks that were started otherwise, or go on from elsewhere, do not start") {
  const auto errors_of = [](const std::function<void(Communicator&)>& body) {
    return test::run_ranks(Topology::blocks(2, 1), body);
  };
  const RunFacts first_facts = {
      .settings = "device: cpu\nthreads: 1\noptimizer:\n  lr: 1\n  # beta: \n",
      .version = "v1",
      .data = "abc",
      .schedule = "stage 0: F0 B0\n"};
  const auto disagreement = [&](const RunFacts& other) {
    const std::vector<std::string> errors = errors_of(
        [&](Communicator& comm) { agree_on_run(comm, comm.rank() == 0 ? first_facts : other); });
    CHECK(errors[0] == errors[1]);
    CHECK_THAT(errors[0], Catch::Contains("rank 1 was started with other settings"));
    return errors[0].substr(errors[0].find("rank 0 -> rank 1: ") + 18);
  };
  RunFacts other = first_facts;
  other.settings = "device: cpu\nthreads: 2\noptimizer:\n  lr: 2\n  beta: 0.5\n";
  CHECK(disagreement(other) ==
        "threads: 1 -> 2; optimizer.lr: 1 -> 2; optimizer.beta: not set -> 0.5");
  other = first_facts;
  other.settings += "# a comment\n";
  CHECK(disagreement(other) == "the text of the configuration");
  other = first_facts;
  other.schedule += "stage 1: F0 B0\n";
  CHECK(disagreement(other) == "the content of parallelism.schedule_file");
  other = first_facts;
  other.version = "v2";
  other.data.clear();
  CHECK(disagreement(other) == "version of the program: v1 -> v2; tokens of data.train: abc -> ");
  for (const std::string& error : errors_of(
           [](Communicator& comm) { agree_on_step(comm, 10 * (comm.rank() + 1), "somewhere"); })) {
    CHECK_THAT(error, Catch::Contains("rank 0 continues from step 10 and rank 1 from step 20"));
  }
  std::vector<int> first(2);
  CHECK(errors_of([&](Communicator& comm) {
          agree_on_run(comm, first_facts);
          first[static_cast<size_t>(comm.rank())] = first_rank_says(comm, comm.rank() == 0) ? 1 : 0;
        }) == std::vector<std::string>(2));
  CHECK(first == std::vector<int>{1, 1});
}

TEST_CASE("all ranks get the whole text of one, also an empty one") {
  for (const int root : {0, 2}) {
    for (const size_t size : {size_t{0}, size_t{5000}}) {
      const std::string text(size, 'x');
      const auto errors = test::run_ranks(Topology::blocks(3, 3), [&](Communicator& comm) {
        const std::string mine = comm.rank() == root ? text : "another";
        if (text_of_rank(comm, mine, root) != text) throw InternalError("another text");
      });
      CHECK(errors == std::vector<std::string>(3));
    }
  }
}

TEST_CASE("others wait as long as the first rank gets on, and no longer") {
  constexpr double kTimeout = test::kSanitized ? 2 : 1;
  const bool beats = GENERATE(true, false);
  CAPTURE(beats);
  const auto errors = test::run_ranks(
      Topology::blocks(3, 1),
      [&](Communicator& comm) {
        Heartbeat heartbeat(comm);
        const Stopwatch watch;
        while (comm.rank() == 0 && watch.seconds() < 4 * kTimeout) {
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
          if (beats) {
            heartbeat.beat();
          }
        }
        heartbeat.end();
        comm.barrier().wait();
      },
      kTimeout);
  int waited_too_long = 0;
  for (const std::string& error : errors) {
    CHECK(error.empty() == beats);
    waited_too_long += error.find(" did not end in ") != std::string::npos ? 1 : 0;
  }
  CHECK((waited_too_long > 0) != beats);
}
