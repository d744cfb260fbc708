// Groups of any ranks, and messages between two of them.

#include <array>
#include <catch2/catch.hpp>
#include <stdexcept>

#include "base/error.h"
#include "comm/backends/backends.h"
#include "comm/group_checks.h"
#include "support/rank_threads.h"

namespace fp8train::test {
namespace {

const Topology kThreeRanks = Topology::blocks(3, 3);

/// Returns the error that `body` throws on this rank; the others do not hear of it.
template <typename Body>
std::string thrown(const Body& body) {
  try {
    body();
  } catch (const CommError& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("random programs over all groups of random meshes", "[groups]") {
  int programs = 0;
  for (const Topology& ranks :
       {Topology::blocks(2, 1), Topology::blocks(3, 3), Topology::blocks(4, 2),
        Topology::blocks(6, 4), Topology::blocks(8, 4), Topology({0, 1, 0, 1})}) {
    const ProgramCounts counts = {.meshes = 30, .programs = 56};
    programs += counts.meshes * counts.programs;
    const auto errors = run_ranks(ranks, [&](Communicator& comm) {
      check_programs(comm, *make_device(DeviceKind::cpu), 34, counts);
    });
    INFO(ranks.size() << " ranks on " << ranks.nodes() << " nodes");
    CHECK(errors == std::vector<std::string>(errors.size()));
  }
  CHECK(programs >= 10000);
}

TEST_CASE("checked: random programs as without", "[groups][checked]") {
  const auto errors = run_ranks(Topology::blocks(4, 2), [&](Communicator& comm) {
    const auto checked = make_checked_communicator(comm.duplicate());
    check_programs(*checked, *make_device(DeviceKind::cpu), 35, {.meshes = 10, .programs = 10});
  });
  CHECK(errors == std::vector<std::string>(4));
}

TEST_CASE("the ranks of one color are a group, and errors name ranks of the run", "[groups]") {
  std::array<std::string, 5> said;
  const auto errors = run_ranks(Topology({0, 0, 1, 1, 2}), [&](Communicator& comm) {
    const std::array<int, 5> colors = {7, 3, 7, 3, 7};
    const auto group = comm.group(colors);
    const bool odd = comm.rank() % 2 == 1;
    const std::vector<int> want = odd ? std::vector<int>{1, 3} : std::vector<int>{0, 2, 4};
    if (group->all_gather_values(comm.rank()) != want || group->nodes() != (odd ? 2 : 3) ||
        group->world_rank(1) != want[1]) {
      throw std::runtime_error("the group has other ranks");
    }
    group->set_timeout(0.2);
    int value = 0;
    const Message message = {.peer = 1, .data = &value, .bytes = sizeof(value)};
    said[static_cast<size_t>(comm.rank())] = thrown([&] {
      group
          ->exchange(Communicator::host_stream(),
                     {&message, group->rank() == 0 ? size_t{1} : size_t{0}})
          .wait();
    });
  });
  CHECK(errors == std::vector<std::string>(5));
  CHECK(said == std::array<std::string, 5>{
                    "rank 0: messages (number 0 from rank 2, 4 bytes) did not end in 0.2 s",
                    "rank 1: messages (number 0 from rank 3, 4 bytes) did not end in 0.2 s"});
}

TEST_CASE("a message without its other end times out and names both ranks", "[groups]") {
  for (const bool sends : {false, true}) {
    const auto errors = run_ranks(kThreeRanks, [&](Communicator& comm) {
      std::array<char, 8> data = {};
      if (comm.rank() == 2) {
        comm.set_timeout(0.2);
        const Message message = {.peer = 1, .sends = sends, .data = data.data(), .bytes = 8};
        comm.exchange(Communicator::host_stream(), {&message, 1}).wait();
      }
    });
    CHECK(errors == std::vector<std::string>{"", "",
                                             std::string("rank 2: messages (number 0 ") +
                                                 (sends ? "to" : "from") +
                                                 " rank 1, 8 bytes) did not end in 0.2 s"});
  }
}

/// Returns the errors of ranks if rank 0 sends `sent` bytes to rank 2, which receives `received`.
std::vector<std::string> differing_ends(size_t sent, size_t received, bool checked) {
  return run_ranks(kThreeRanks, [&](Communicator& comm) {
    std::unique_ptr<Communicator> own = comm.duplicate();
    if (checked) {
      own = make_checked_communicator(std::move(own));
    }
    std::array<char, 64> data = {};
    Message message = {.peer = 2, .sends = true, .data = data.data(), .bytes = sent};
    if (comm.rank() == 2) {
      message = {.peer = 0, .data = data.data(), .bytes = received};
    }
    if (comm.rank() != 1) {
      own->exchange(Communicator::host_stream(), {&message, 1}).wait();
    }
  });
}

TEST_CASE("ends of a message that differ are errors that name both ranks", "[groups]") {
  const auto unchecked = differing_ends(8, 16, false);
  for (const size_t end : {size_t{0}, size_t{2}}) {
    CHECK_THAT(unchecked[end],
               Catch::Contains("message 0: rank 0 sends 8 bytes, rank 2 receives 16"));
  }
  const auto errors = differing_ends(16, 8, true);
  CHECK(errors[0] ==
        "rank 0: the ends of message 0 differ: this one sends 16 bytes in step 0; rank 2 receives "
        "8 bytes in step 0");
  CHECK(errors[1].empty());
  CHECK(errors[2] ==
        "rank 2: the ends of message 0 differ: this one receives 8 bytes in step 0; rank 0 sends "
        "16 bytes in step 0");
}

TEST_CASE("checked: a rank that makes another group is named on all ranks", "[groups][checked]") {
  const auto errors = run_ranks(kThreeRanks, [](Communicator& comm) {
    const auto checked = make_checked_communicator(comm.duplicate());
    const std::array<int, 3> colors = {0, comm.rank() == 1 ? 1 : 0, 0};
    checked->group(colors);
  });
  for (const std::string& error : errors) {
    CHECK_THAT(error, Catch::Contains("; rank 1 calls group 0") && !Catch::Contains("; rank 0"));
  }
}

TEST_CASE("checked: in a group errors name ranks of the run", "[groups][checked]") {
  std::array<std::string, 4> said;
  run_ranks(Topology::blocks(4, 4), [&](Communicator& comm) {
    const auto checked = make_checked_communicator(comm.duplicate());
    const std::array<int, 4> colors = {0, 1, 0, 1};
    const auto group = checked->group(colors);
    said[static_cast<size_t>(comm.rank())] = thrown([&] {
      comm.rank() == 3 ? void(group->all_gather_values(uint64_t{1}))
                       : void(group->all_gather_values(uint32_t{1}));
    });
  });
  CHECK(said[0] + said[2] == "");
  for (const int rank : {1, 3}) {
    CHECK_THAT(said[static_cast<size_t>(rank)],
               Catch::StartsWith("rank " + std::to_string(rank)) &&
                   Catch::Contains("rank 1 calls all_gather 0 of 4 bytes, root 0, in step 0; "
                                   "rank 3 calls all_gather 0 of 8 bytes"));
  }
}

TEST_CASE("a rank that dies in a message ends the others, and is named", "[groups]") {
  const auto errors = run_ranks(kThreeRanks, [](Communicator& comm) {
    int value = comm.rank();
    const int next = (comm.rank() + 1) % 3;
    const std::array<Message, 2> ring = {
        Message{.peer = next, .sends = true, .data = &value, .bytes = 4},
        Message{.peer = (comm.rank() + 2) % 3, .data = &value, .bytes = 4}};
    if (comm.rank() == 1) {
      const Message other = {.peer = 2, .data = &value, .bytes = 4};
      const Work begun = comm.exchange(Communicator::host_stream(), {&other, 1});
      throw std::runtime_error("out of luck");
    }
    comm.exchange(Communicator::host_stream(), ring).wait();
  });
  CHECK(errors[1] == "out of luck");
  for (const size_t other : {size_t{0}, size_t{2}}) {
    CHECK_THAT(errors[other], Catch::StartsWith("rank " + std::to_string(other) + ": messages") &&
                                  Catch::Contains("rank 1 has"));
  }
}

TEST_CASE("what is no message or no group is refused", "[groups]") {
  const auto comm = make_dry_run(Topology::blocks(4, 2), 1);
  int value = 0;
  const auto refused = [&](const Message& message) {
    CHECK_THROWS_AS(comm->exchange(Communicator::host_stream(), {&message, 1}), InternalError);
  };
  refused({.peer = 4, .data = &value, .bytes = 4});
  refused({.peer = -1, .data = &value, .bytes = 4});
  refused({.peer = 1, .data = &value, .bytes = 4});
  refused({.peer = 2, .data = &value, .bytes = 0});
  CHECK_FALSE(comm->exchange(Communicator::host_stream(), {}).is_pending());
  CHECK_THROWS_AS(comm->group(std::array{0, 0, 0}), InternalError);
  CHECK_THROWS_AS(comm->group(std::array{0, 0, 0, -1}), InternalError);
}

TEST_CASE("a dry run counts messages by class of link and receives zeros", "[groups][dry_run]") {
  const auto comm = make_dry_run(Topology::blocks(4, 2), 1);
  std::array<int, 3> values = {5, 6, 7};
  const std::array<Message, 3> messages = {
      Message{.peer = 0, .sends = true, .data = values.data(), .bytes = 4},
      Message{.peer = 2, .sends = true, .data = values.data(), .bytes = 8},
      Message{.peer = 3, .data = values.data() + 1, .bytes = 8}};
  comm->exchange(Communicator::host_stream(), messages).wait();
  CHECK(comm->traffic() == Traffic{4, 8});
  CHECK(values == std::array<int, 3>{5, 0, 0});
}

}  // namespace
}  // namespace fp8train::test
