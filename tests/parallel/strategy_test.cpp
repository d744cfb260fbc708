#include "parallel/strategy.h"

#include <catch2/catch.hpp>

#include <memory>

#include "base/error.h"
#include "comm/backends/backends.h"

using namespace fp8train;

namespace {

constexpr int kRanks = 4;
constexpr int kRank = 1;

void add_parameters(ParameterStore& store) {
  for (const char* name : {"embedding", "a", "b", "head"}) {
    store.begin_unit();
    store.add({.name = name, .shape = {128, 8}});
  }
}

/// A strategy of one of four ranks that send nothing, on a device that computes nothing.
struct Attached {
  std::unique_ptr<Device> device = make_meta_device({});
  std::unique_ptr<Communicator> comm;
  ParameterStore store;
  std::unique_ptr<Strategy> strategy;

  Attached(int ranks, const StrategySettings& settings) {
    if (ranks > 1) {
      comm = make_dry_run(Topology::blocks(ranks, ranks), kRank);
    }
    strategy = make_strategy({.mesh = Mesh(comm.get()), .settings = settings});
    add_parameters(store);
    store.allocate(*device, true, strategy->sharing());
    strategy->attach(*device, store, {});
  }
};

}  // namespace

TEST_CASE("the strategy is the one that serves the ranks and settings") {
  const auto name = [](int ranks, int stage, bool trains = true) {
    return strategy_name({.mesh = Mesh({.data = ranks}, 0, nullptr),
                          .settings = {.zero_stage = stage},
                          .trains = trains});
  };
  CHECK(name(1, 0) == "one rank");
  CHECK(name(1, 3) == "one rank");
  CHECK(name(kRanks, 0) == "DDP");
  CHECK(name(kRanks, 2) == "ZeRO 2");
  CHECK(strategy_name({.mesh = Mesh({.data = kRanks, .nodes = 2}, 0, nullptr),
                       .settings = {.zero_stage = 2}}) == "ZeRO 2");
  CHECK(strategy_name(
            {.mesh = Mesh({.data = kRanks, .nodes = 2}, 0, nullptr),
             .settings = {.zero_stage = 3, .shard_ranks = kRanksOfNode, .sync_each_batch = true},
             .accumulates = true}) ==
        "ZeRO 3 within groups of 2, gradients exchanged in each micro-batch");
  // There is nothing to share where nothing is trained.
  CHECK(name(kRanks, 2, false) == "DDP");
}

TEST_CASE("one rank exchanges nothing, and its steps can be recorded") {
  const Attached one(1, {.zero_stage = 3});
  Strategy& strategy = *one.strategy;
  CHECK(strategy.mesh().world_size() == 1);
  CHECK_FALSE(strategy.sharing().exchanged);
  CHECK_FALSE(strategy.rounds_gradients());
  CHECK(strategy.can_be_recorded());
  CHECK(strategy.begin_exchange(true) == nullptr);
  CHECK(strategy.combiner() == nullptr);
  CHECK(strategy.gatherer() == nullptr);
  CHECK(one.device->ledger().current(MemoryCategory::communication) == 0);
}

TEST_CASE("replicas exchange gradients, and update whole parameters") {
  const Attached replicas(kRanks, {});
  Strategy& strategy = *replicas.strategy;
  CHECK(strategy.mesh().index(Axis::data) == kRank);
  CHECK(strategy.sharing().exchanged);
  CHECK(strategy.rounds_gradients());
  CHECK_FALSE(strategy.can_be_recorded());
  CHECK(replicas.store.shards() == nullptr);
  CHECK(strategy.combiner() == nullptr);
  CHECK(strategy.gatherer() == nullptr);
  CHECK(replicas.device->ledger().current(MemoryCategory::communication) > 0);
  double norm = 0;
  GradientListener* const listener = strategy.begin_exchange(true);
  REQUIRE(listener != nullptr);
  listener->gradients_complete(0, 3);
  CHECK_THROWS_AS(strategy.finish_exchange(&norm), InternalError);  // one is missing
  const uint64_t before = replicas.comm->traffic().total();
  listener->gradients_complete(3, 4);
  strategy.finish_exchange(&norm);
  CHECK(replicas.comm->traffic().total() > before);
}

TEST_CASE("ranks that share update parts, and gather values") {
  for (const int stage : {1, 2, 3}) {
    CAPTURE(stage);
    const Attached shared(kRanks, {.zero_stage = stage});
    Strategy& strategy = *shared.strategy;
    REQUIRE(shared.store.shards() != nullptr);
    CHECK(shared.store.shards()->share().ranks == kRanks);
    CHECK(shared.store.shards()->share().rank == kRank);
    CHECK(strategy.combiner() != nullptr);
    REQUIRE(strategy.gatherer() != nullptr);
    CHECK(strategy.gatherer()->gathers_per_pass() == (stage == 3));
    CHECK(strategy.begin_exchange(true) != nullptr);
  }
}

TEST_CASE("whole parameters go to the rank with the least work, the most expensive first") {
  const std::unique_ptr<Device> device = make_meta_device({});
  const std::unique_ptr<Communicator> comm = make_dry_run(Topology::blocks(2, 2), kRank);
  ParameterStore store;
  for (const int64_t rows : {2, 1, 5, 4, 2}) {
    store.begin_unit();
    store.add({.name = "p" + std::to_string(rows), .shape = {rows, 8}});
  }
  const auto cost = [](const Parameter& parameter) {
    return static_cast<double>(parameter.shape[0]);
  };
  const std::unique_ptr<Strategy> strategy =
      make_strategy({.mesh = Mesh(comm.get()), .settings = {.zero_stage = 1}, .whole_cost = cost});
  store.allocate(*device, true, strategy->sharing());
  REQUIRE(store.owners() != nullptr);
  // 5 | 4, then 2 to the second rank, 2 to the first, which has 5 and not 6, and 1 to the second
  CHECK(store.owners()->of == std::vector<int>{1, 1, 0, 1, 0});
}

TEST_CASE("ranks share a store by parts or by whole parameters, and not by both") {
  const std::unique_ptr<Device> device = make_meta_device({});
  ParameterStore store;
  add_parameters(store);
  const StoreSharing both = {
      .shards = [](const ParameterStore&) { return std::unique_ptr<StoreShards>(); },
      .owners = [](const ParameterStore&) { return UpdateOwners(); }};
  CHECK_THROWS_AS(store.allocate(*device, true, both), InternalError);
}
