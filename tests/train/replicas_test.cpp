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

}  // namespace
}  // namespace fp8train::test
