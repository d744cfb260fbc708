#include "train/checkpoint/replicas.h"

#include <catch2/catch.hpp>

#include "support/rank_threads.h"

namespace fp8train::test {
namespace {

/// What each of four ranks says where some of them hold another second thing.
std::vector<std::string> compare(const std::vector<uint64_t>& second) {
  const auto ranks = static_cast<int>(second.size());
  return run_ranks(Topology::blocks(ranks, ranks), [&](Communicator& comm) {
    compare_replicas(Mesh(&comm), {{"one", 1}, {"two", second[static_cast<size_t>(comm.rank())]}},
                     70);
  });
}

TEST_CASE("ranks that hold the same get no error", "[replicas]") {
  CHECK(compare({5, 5, 5, 5}) == std::vector<std::string>(4));
}

TEST_CASE("the rank that differs is named on all ranks", "[replicas]") {
  for (const std::string& error : compare({5, 5, 6, 5})) {
    CHECK_THAT(error, Catch::Contains("after step 70") &&
                          Catch::Contains("bits of two: rank 2 (") && !Catch::Contains("rank 1") &&
                          Catch::Contains("from the other ranks"));
  }
  for (const std::string& error : compare({4, 5, 6, 5})) {
    CHECK_THAT(error, Catch::Contains("rank 0 (") && Catch::Contains("rank 2 (") &&
                          !Catch::Contains("rank 3"));
  }
}

TEST_CASE("ranks of a pipeline stage that differ are named", "[replicas]") {
  // The second stage has more. All ranks of a stage have what no axis cuts, those of the state axis
  // what the tensor axis cuts.
  const MeshShape shape = {.pipeline = 2, .data = 2, .tensor = 2};
  const auto compare_stages = [&](const std::vector<uint64_t>& cut,
                                  const std::vector<uint64_t>& whole) {
    return run_ranks(Topology::blocks(8, 8), [&](Communicator& comm) {
      const auto rank = static_cast<size_t>(comm.rank());
      std::vector<ReplicaHash> hashes = {{"cut", cut[rank], Group::state}};
      if (rank >= 4) {
        hashes.push_back({"norm", whole[rank], Group::stage});
        hashes.push_back({"head", cut[rank], Group::state});
      }
      compare_replicas(Mesh(shape, comm.rank(), &comm), hashes, 70);
    });
  };
  const std::vector<uint64_t> equal = {1, 2, 1, 2, 3, 4, 3, 4};
  const std::vector<uint64_t> all = {0, 0, 0, 0, 9, 9, 9, 9};
  CHECK(compare_stages(equal, all) == std::vector<std::string>(8));
  for (const std::string& error : compare_stages(equal, {0, 0, 0, 0, 9, 9, 8, 9})) {
    CHECK_THAT(error, Catch::Contains("bits of norm: rank 6 (") &&
                          Catch::Contains("from the other ranks"));
  }
  for (const std::string& error : compare_stages({1, 2, 1, 2, 3, 5, 3, 4}, all)) {
    CHECK_THAT(error, Catch::Contains("bits of cut: rank 5 (") && Catch::Contains(", rank 7 (") &&
                          Catch::Contains("is unknown"));
  }
}

TEST_CASE("of two ranks both are named", "[replicas]") {
  for (const std::string& error : compare({5, 6})) {
    CHECK_THAT(error, Catch::Contains("rank 0 (") && Catch::Contains("rank 1 (") &&
                          Catch::Contains("is unknown"));
  }
}

/// The first and the last of three stages have the table.
TEST_CASE("tables of the first and the last stage are compared", "[replicas]") {
  const auto compare_ends = [](uint64_t last) {
    return run_ranks(Topology::blocks(3, 3), [&](Communicator& comm) {
      const uint64_t hashes[] = {5, 0, last};
      const auto stage = static_cast<size_t>(comm.rank());
      compare_replicas(
          Mesh({.pipeline = 3, .nodes = 1}, comm.rank(), &comm),
          {{.name = "the table", .hash = hashes[stage], .group = Group::pipe}, {"own", stage + 1}},
          70);
    });
  };
  CHECK(compare_ends(5) == std::vector<std::string>(3));
  for (const std::string& error : compare_ends(6)) {
    CHECK_THAT(error,
               Catch::Contains("bits of the table: rank 0 (") && Catch::Contains("rank 2 ("));
  }
}

}  // namespace
TEST_CASE("ranks with the same experts are compared", "[replicas]") {
  // Ranks 0 and 2 have some, and 1 and 3 others.
  const auto compare_experts = [](const std::vector<uint64_t>& experts) {
    return run_ranks(Topology::blocks(4, 4), [&](Communicator& comm) {
      const auto rank = static_cast<size_t>(comm.rank());
      compare_replicas(Mesh({.data = 4, .expert = 2}, comm.rank(), &comm),
                       {{"norm", 7, Group::stage}, {"expert", experts[rank], Group::expert_state}},
                       70);
    });
  };
  CHECK(compare_experts({1, 2, 1, 2}) == std::vector<std::string>(4));
  for (const std::string& error : compare_experts({1, 2, 1, 3})) {
    CHECK_THAT(error, Catch::Contains("bits of expert: rank 1 (") &&
                          Catch::Contains(", rank 3 (") && Catch::Contains("is unknown"));
  }
}

}  // namespace fp8train::test
