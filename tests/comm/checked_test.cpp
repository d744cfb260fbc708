#include <catch2/catch.hpp>

#include "comm/backends/backends.h"
#include "comm/collective_checks.h"
#include "comm/majority.h"
#include "support/rank_threads.h"

namespace fp8train::test {
namespace {

const Topology kThreeRanks = Topology::blocks(3, 3);

TEST_CASE("checked: every collective, sum and wire as without", "[checked]") {
  for (const Topology& topology : {kThreeRanks, Topology::blocks(4, 2)}) {
    const auto errors = run_ranks(topology, [](Communicator& comm) {
      const auto checked = make_checked_communicator(comm.duplicate());
      check_collectives(*checked);
      check_reductions(*checked);
      check_exchanges(*checked, *make_device(DeviceKind::cpu));
    });
    CHECK(errors == std::vector<std::string>(errors.size()));
  }
}

/// What each rank throws where rank 1 does `other` and the others do `usual`.
std::vector<std::string> differing(const std::function<void(Communicator&)>& usual,
                                   const std::function<void(Communicator&)>& other) {
  return run_ranks(kThreeRanks, [&](Communicator& comm) {
    const auto checked = make_checked_communicator(comm.duplicate());
    checked->barrier().wait();
    (comm.rank() == 1 ? other : usual)(*checked);
  });
}

void check_named(const std::vector<std::string>& errors, const std::string& call) {
  for (const std::string& error : errors) {
    CHECK_THAT(error, Catch::Contains("ranks call different collectives") &&
                          Catch::Contains("; rank 1 calls " + call) &&
                          !Catch::Contains("; rank 0") && !Catch::Contains("; rank 2"));
  }
}

TEST_CASE("checked: a rank that calls with another count is named on all ranks", "[checked]") {
  check_named(differing([](Communicator& comm) { comm.all_gather_values(uint32_t{1}); },
                        [](Communicator& comm) { comm.all_gather_values(uint64_t{1}); }),
              "all_gather 1 of 8 bytes");
}

TEST_CASE("checked: a rank that leaves a collective out is named on all ranks", "[checked]") {
  check_named(differing(
                  [](Communicator& comm) {
                    comm.all_gather_values(1);
                    comm.barrier().wait();
                  },
                  [](Communicator& comm) { comm.barrier().wait(); }),
              "barrier 1 of 0 bytes");
}

TEST_CASE("checked: a rank that takes another root is named on all ranks", "[checked]") {
  const auto broadcast = [](int root) {
    return [root](Communicator& comm) {
      int value = 7;
      comm.broadcast(Communicator::host_stream(), &value, sizeof(value), root).wait();
    };
  };
  check_named(differing(broadcast(0), broadcast(2)), "broadcast 1 of 4 bytes, root 2");
}

TEST_CASE("the ranks whose value is not the most frequent one differ", "[checked]") {
  CHECK(ranks_that_differ({3, 3, 4, 3}) == std::vector<int>{2});
  CHECK(ranks_that_differ({5, 3, 4, 3}) == std::vector<int>{0, 2});
  CHECK(ranks_that_differ({3, 4}) == std::vector<int>{0, 1});
  CHECK(ranks_that_differ({3, 3}).empty());
}

}  // namespace
}  // namespace fp8train::test
