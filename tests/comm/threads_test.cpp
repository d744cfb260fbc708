#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "comm/backends/backends.h"
#include "comm/collective_checks.h"
#include "support/rank_threads.h"

namespace fp8train::test {
namespace {

/// All ranks on one node, on nodes of two, and where the last node has fewer.
std::vector<Topology> topologies() {
  std::vector<Topology> made;
  for (const int ranks : {1, 2, 3, 4, 6}) {
    made.push_back(Topology::blocks(ranks, ranks));
    made.push_back(Topology::blocks(ranks, 2));
  }
  made.emplace_back(std::vector<int>{0, 1, 0, 1});
  return made;
}

void exchange_on_cpu(Communicator& comm) {
  check_exchanges(comm, *make_device(DeviceKind::cpu));
}

void check_all(void (*body)(Communicator&)) {
  for (const Topology& topology : topologies()) {
    INFO(topology.size() << " ranks on " << topology.nodes() << " nodes");
    for (const std::string& error : run_ranks(topology, body)) {
      CHECK(error == "");
    }
  }
}

TEST_CASE("threads: every collective", "[threads]") {
  check_all(check_collectives);
}

TEST_CASE("threads: sums over ranks", "[threads]") {
  check_all(check_reductions);
}

TEST_CASE("threads: every wire against sums in fp64", "[threads][exchange]") {
  check_all(exchange_on_cpu);
}

TEST_CASE("one rank needs no others", "[self]") {
  const auto comm = make_self_communicator();
  check_collectives(*comm);
  check_reductions(*comm);
  exchange_on_cpu(*comm);
  CHECK(comm->traffic().total() == 0);
}

TEST_CASE("a rank that does not come is named", "[threads]") {
  std::atomic<bool> over = false;
  const auto errors = run_ranks(Topology::blocks(4, 4), [&](Communicator& comm) {
    comm.barrier().wait();
    while (comm.rank() == 2) {  // it must not leave before rank 0 has reported it
      if (over) {
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    // The others' errors must not come before this one's time is over.
    comm.set_timeout(comm.rank() == 0 ? 1.0 : 30.0);
    try {
      comm.all_gather_values(comm.rank());
    } catch (...) {
      over = true;
      throw;
    }
  });
  CHECK_THAT(errors[0],
             Catch::Contains("all_gather did not end in 1 s") && Catch::Contains("not joined: 2"));
  CHECK(errors[2].empty());
  for (const int other : {1, 3}) {  // rank 0 has reported it, or has left first
    CHECK_THAT(errors[static_cast<size_t>(other)], Catch::Contains("rank 0 has"));
  }
}

TEST_CASE("ranks that call different collectives are reported", "[threads]") {
  const auto errors = run_ranks(Topology::blocks(2, 2), [](Communicator& comm) {
    if (comm.rank() == 0) {
      comm.all_gather_values(uint32_t{1});
    } else {
      comm.all_gather_values(uint64_t{1});
    }
  });
  CHECK_THAT(errors[0] + errors[1], Catch::Contains("4 bytes") && Catch::Contains("8 bytes"));
  CHECK_FALSE(errors[0].empty());
  CHECK_FALSE(errors[1].empty());
}

TEST_CASE("ranks that call another collective or root are reported at once", "[threads]") {
  const auto check = [](const std::function<void(Communicator&)>& body) {
    for (const std::string& error : run_ranks(Topology::blocks(3, 3), body)) {
      CHECK_THAT(error, !Catch::Contains("did not end") && Catch::Contains("collective 0"));
    }
  };
  check([](Communicator& comm) {  // each waits for another one
    int value = 0;
    comm.broadcast(Communicator::host_stream(), &value, sizeof(int), comm.rank()).wait();
  });
  check([](Communicator& comm) {
    std::vector<int> sent(3), received(3);
    if (comm.rank() == 1) {
      comm.all_gather(Communicator::host_stream(), sent.data(), received.data(), sizeof(int))
          .wait();
    } else {
      comm.all_to_all(Communicator::host_stream(), sent.data(), received.data(), sizeof(int))
          .wait();
    }
  });
}

TEST_CASE("an operation is done without waiting when all have joined", "[threads]") {
  const auto errors = run_ranks(Topology::blocks(3, 3), [](Communicator& comm) {
    int value = comm.rank();
    std::vector<int> all(3);
    Work work =
        comm.all_gather({DeviceKind::cpu, nullptr, nullptr}, &value, all.data(), sizeof(int));
    while (!work.done()) {
      std::this_thread::yield();
    }
    if (all != std::vector<int>{0, 1, 2}) {
      throw std::runtime_error("not all has arrived");
    }
  });
  CHECK(errors == std::vector<std::string>(3));
}

}  // namespace
}  // namespace fp8train::test
