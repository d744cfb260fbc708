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
          {{.name = "the table", .hash = hashes[stage], .of_ends = true}, {"own", stage + 1}}, 70);
    });
  };
  CHECK(compare_ends(5) == std::vector<std::string>(3));
  for (const std::string& error : compare_ends(6)) {
    CHECK_THAT(error,
               Catch::Contains("bits of the table: rank 0 (") && Catch::Contains("rank 2 ("));
  }
}

}  // namespace
}  // namespace fp8train::test
