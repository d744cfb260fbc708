// Whole steps whose gradients cross in int8 with a scale for 256 elements.

#include <catch2/catch.hpp>

#include "engine/dry_run.h"
#include "support/parameters.h"
#include "support/rank_threads.h"
#include "support/small_llama.h"

using namespace fp8train;

namespace {

/// Weights of odd multiples of 256 elements: half a shard of one is no whole group.
EngineSettings settings_of(int stage) {
  EngineSettings settings = test::small_llama("te-current");
  settings.model.hidden_size = 48;
  settings.model.num_attention_heads = 3;
  settings.model.head_dim = 16;
  settings.model.intermediate_size = 80;
  PlanRequest request;
  request.plan = "te-current";
  request.roles.gradient_wire = "int8 group(256)";
  settings.plan = resolve_plan(request);
  settings.strategy.bucket_bytes = 1 << 20;
  settings.strategy.zero_stage = stage;
  return settings;
}

struct Result {
  std::vector<float> weights;
  std::vector<double> losses, norms;
};

Result train(const EngineSettings& settings, Communicator* comm, bool same_batches) {
  const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  Engine engine(*device, settings, comm);
  const int rank = comm == nullptr ? 0 : comm->rank();
  const Topology topology = comm == nullptr ? Topology() : comm->topology();
  engine.reserve(dry_run_step(settings, DeviceTraits{}, topology, rank).plan);
  engine.model().initialize(3);
  engine.weights_changed();
  Result result;
  for (int64_t step = 0; step < 3; ++step) {
    const auto index = static_cast<uint64_t>(step * 8 + (same_batches ? 0 : rank));
    engine.step([&] { return test::random_batch(index); }, step, 1e-3, true);
    result.losses.push_back(engine.step_loss().mean);
    result.norms.push_back(engine.optimizer().control().gradient_norm);
  }
  result.weights = test::values_of(engine);
  return result;
}

std::vector<Result> train_ranks(int stage, int ranks, bool same_batches) {
  std::vector<Result> results(static_cast<size_t>(ranks));
  const EngineSettings settings = settings_of(stage);
  const auto errors = test::run_ranks(Topology::blocks(ranks, ranks), [&](Communicator& comm) {
    results[static_cast<size_t>(comm.rank())] = train(settings, &comm, same_batches);
  });
  CHECK(errors == std::vector<std::string>(errors.size()));
  return results;
}

}  // namespace

TEST_CASE("int8 wire: stages of ZeRO have the same bits") {
  const int ranks = GENERATE(2, 3);
  CAPTURE(ranks);
  const Result whole = train_ranks(0, ranks, false)[0];
  const std::vector<Result> first = train_ranks(1, ranks, false);
  REQUIRE(first[0].weights == first[1].weights);
  for (const int stage : {2, 3}) {
    CAPTURE(stage);
    const Result result = train_ranks(stage, ranks, false)[0];
    CHECK(result.weights == first[0].weights);
    CHECK(result.losses == first[0].losses);
    CHECK(result.norms == first[0].norms);
  }
  // Replicas gather means in bf16, as with every wire that has scales.
  for (size_t step = 0; step < whole.losses.size(); ++step) {
    CHECK(whole.losses[step] == Approx(first[0].losses[step]).epsilon(5e-3));
  }
}

TEST_CASE("int8 wire: ranks with the same batch round as one rank does") {
  const Result one = train(settings_of(0), nullptr, true);
  for (const int ranks : {2, 4}) {
    CAPTURE(ranks);
    const Result several = train_ranks(1, ranks, true)[0];
    // Powers of two: the mean of equal contributions is one of them, and so are its groups' scales.
    CHECK(several.weights == one.weights);
    CHECK(several.losses == one.losses);
  }
}
