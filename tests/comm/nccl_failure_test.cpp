// What goes wrong between ranks on GPUs, before the fake NCCL, which refuses what breaks its rules;
// and ranks that meet by a file.

#include <catch2/catch.hpp>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "base/error.h"
#include "comm/backends/rendezvous.h"
#include "comm/collective_checks.h"
#include "comm/nccl_ranks.h"
#include "nccl_fake.h"
#include "support/rank_threads.h"
#include "support/temp_dir.h"

namespace fp8train::test {
namespace {

/// No rule was broken, and no communicator is left.
class CleanEnd {
 public:
  CleanEnd() : before_(shim::nccl_counts()) {}
  void check() const {
    CHECK(shim::nccl_counts().misused == before_.misused);
    CHECK(shim::nccl_counts().alive == before_.alive);
  }
  uint64_t aborted() const { return shim::nccl_counts().aborted - before_.aborted; }
  uint64_t with_buffers() const { return shim::nccl_counts().with_buffers - before_.with_buffers; }
  uint64_t destroyed() const { return shim::nccl_counts().destroyed - before_.destroyed; }

 private:
  shim::NcclCounts before_;
};

/// What the communicator says to whatever comes after its end.
std::string next_answer(Communicator& comm, Device& device, void* memory) {
  try {
    comm.broadcast(device.stream(), memory, 4, 0).wait();
  } catch (const CommError& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("nccl: communicators end in order, and none is left", "[nccl]") {
  gpus_for_ranks(2);
  const CleanEnd end;
  const auto errors = run_nccl_ranks(
      Topology::blocks(2, 2), [](Communicator& comm, Device& /*device*/, Communicator& /*host*/) {
        const auto duplicate = comm.duplicate();
        const auto node = duplicate->node_group();
      });
  CHECK(errors == std::vector<std::string>(2));
  end.check();
  CHECK(end.destroyed() == 6);
  CHECK(end.with_buffers() == 2);  // groups use those of the communicator of all ranks
  CHECK(end.aborted() == 0);
}

TEST_CASE("nccl: an operation that a rank does not start is aborted, and named", "[nccl]") {
  gpus_for_ranks(2);
  const CleanEnd end;
  std::vector<std::string> later(2);
  const auto errors = run_nccl_ranks(
      Topology::blocks(2, 2), [&](Communicator& comm, Device& device, Communicator& host) {
        const auto duplicate = comm.duplicate();
        const Buffer memory(device, 64, MemoryCategory::workspace);
        const auto rank = static_cast<size_t>(comm.rank());
        duplicate->set_timeout(0.3);
        const auto begin = std::chrono::steady_clock::now();
        if (rank == 0) {
          Work work = duplicate->all_gather(device.stream(), memory.data(), memory.data(), 32);
          work.wait();
          device.synchronize();  // for ever, but for the watchdog
        }
        host.barrier().wait();
        const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
        if (passed.count() > 20) {
          throw std::runtime_error("took too long");
        }
        later[rank] = rank == 0 ? next_answer(comm, device, memory.data()) : "";
        if (rank == 1) {
          throw std::runtime_error("alone");
        }
      });
  CHECK(errors == std::vector<std::string>{"", "alone"});
  CHECK_THAT(later[0],
             Catch::Contains("rank 0: all_gather") && Catch::Contains("did not end in 0.3 s"));
  end.check();
  CHECK(end.aborted() == 4);  // of each rank, the duplicate and what it was made from
}

/// Returns the error of rank 0 if it and rank 1 start these messages of 16 bytes, one call each.
std::string answer_to_messages(const std::vector<Message>& first,
                               const std::vector<Message>& other) {
  std::string said;
  run_nccl_ranks(Topology::blocks(2, 2),
                 [&](Communicator& comm, Device& device, Communicator& host) {
                   const Buffer memory(device, 64, MemoryCategory::workspace);
                   comm.set_timeout(0.3);
                   try {
                     for (Message message : comm.rank() == 0 ? first : other) {
                       message.data = memory.data();
                       comm.exchange(device.stream(), {&message, 1}).wait();
                     }
                     device.synchronize();  // for ever, but for the watchdog
                   } catch (const CommError& error) {
                     said = comm.rank() == 0 ? error.what() : said;
                   }
                   const std::string next = next_answer(comm, device, memory.data());
                   host.barrier().wait();
                   if (comm.rank() == 0) {
                     said += next;
                   }
                 });
  return said;
}

TEST_CASE("nccl: a message without its other end, or with another one, names both ranks",
          "[nccl]") {
  gpus_for_ranks(2);
  const CleanEnd end;
  const Message to_1 = {.peer = 1, .sends = true, .data = nullptr, .bytes = 16};
  const Message from_1 = {.peer = 1, .data = nullptr, .bytes = 16};
  const Message to_0 = {.peer = 0, .sends = true, .data = nullptr, .bytes = 16};
  const Message from_0 = {.peer = 0, .data = nullptr, .bytes = 16};
  CHECK(answer_to_messages({to_1, from_1}, {from_0, to_0}).empty());
  CHECK_THAT(answer_to_messages({to_1}, {}),
             Catch::Contains("rank 0: messages (number 0 to rank 1, 16 bytes) did not end in 0.3"));
  // Each waits for what the other will send after what it waits for.
  CHECK_THAT(answer_to_messages({from_1, to_1}, {from_0, to_0}),
             Catch::Contains("rank 0: messages (number 0 from rank 1, 16 bytes) did not end"));
  end.check();
  Message longer = to_0;
  longer.bytes = 24;
  CHECK_THAT(answer_to_messages({from_1}, {longer}),
             Catch::Contains("rank 1 sends 24 bytes to rank 0, which receives 16"));
}

TEST_CASE("nccl: what breaks in the background ends the run, and names rank and operation",
          "[nccl]") {
  gpus_for_ranks(2);
  const CleanEnd end;
  std::vector<std::string> later(2);
  const auto errors = run_nccl_ranks(
      Topology::blocks(2, 2), [&](Communicator& comm, Device& device, Communicator& host) {
        const Buffer memory(device, 64, MemoryCategory::workspace);
        host.barrier().wait();
        shim::break_nccl_network(true);
        std::string said;
        try {
          comm.all_to_all(device.stream(), memory.data(),
                          static_cast<std::byte*>(memory.data()) + 32, 16)
              .wait();
          device.synchronize();
        } catch (const CommError& error) {
          said = error.what();
        }
        const std::string next = next_answer(comm, device, memory.data());
        later[static_cast<size_t>(comm.rank())] = said.empty() ? next : said;
        if (next.empty()) {
          throw std::runtime_error("a communicator is used after its end");
        }
        host.barrier().wait();
      });
  shim::break_nccl_network(false);
  CHECK(errors == std::vector<std::string>(2));
  for (const int rank : {0, 1}) {
    CHECK_THAT(later[static_cast<size_t>(rank)],
               Catch::Contains("rank " + std::to_string(rank) + ": all_to_all") &&
                   Catch::Contains("network"));
  }
  end.check();
  CHECK(end.aborted() == 2);
}

TEST_CASE("nccl: ranks that call different collectives are reported", "[nccl]") {
  gpus_for_ranks(2);
  const auto errors = run_nccl_ranks(
      Topology::blocks(2, 2), [](Communicator& comm, Device& device, Communicator& host) {
        const Buffer memory(device, 64, MemoryCategory::workspace);
        Work work = comm.all_gather(device.stream(), memory.data(), memory.data(),
                                    comm.rank() == 0 ? 16 : 32);
        host.barrier().wait();
        device.synchronize();
        work.done();
      });
  CHECK_THAT(errors[0] + errors[1],
             Catch::Contains("all_gather of 16") && Catch::Contains("all_gather of 32"));
}

TEST_CASE("nccl: a rank that gives up is not waited for", "[nccl]") {
  gpus_for_ranks(2);
  const CleanEnd end;
  const auto begin = std::chrono::steady_clock::now();
  const auto errors = run_nccl_ranks(
      Topology::blocks(2, 2), [](Communicator& comm, Device& device, Communicator& /*host*/) {
        const auto duplicate = comm.duplicate();
        if (comm.rank() == 1) {
          throw std::runtime_error("rank 1 is out of luck");
        }
        const Buffer memory(device, 64, MemoryCategory::workspace);
        duplicate->set_timeout(0.5);
        duplicate->all_gather(device.stream(), memory.data(), memory.data(), 32).wait();
        device.synchronize();
        duplicate->barrier().wait();
      });
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
  CHECK(passed.count() < 20);
  CHECK(errors[1] == "rank 1 is out of luck");
  CHECK_FALSE(errors[0].empty());
  end.check();
  CHECK(end.aborted() >= 2);
}

TEST_CASE("nccl: two ranks on one GPU, and a library that is not there, are errors that say so",
          "[nccl]") {
  gpus_for_ranks(2);
  const auto start = [](int gpu_of_second) {
    return run_ranks(Topology::blocks(2, 2), [&](Communicator& host) {
      const std::unique_ptr<Device> device =
          make_device(DeviceKind::cuda, host.rank() == 0 ? 0 : gpu_of_second);
      make_nccl_communicator(host, *device);
    });
  };
  CHECK(start(1) == std::vector<std::string>(2));
  CHECK_THAT(start(0)[0], Catch::Contains("ranks 0 and 1 are on one GPU (0000:00:00.0)"));
  CHECK_THAT(start(2)[1], Catch::Contains("GPU 2 was asked for, but this process sees 2"));
}

TEST_CASE("nccl: ranks that meet by a file", "[nccl][rendezvous]") {
  const int ranks = gpus_for_ranks(3);
  const CleanEnd end;
  const TempDir folder;
  const std::vector<std::string> errors =
      run_ranks(Topology::blocks(ranks, 2), [&](Communicator& host) {
        const Rendezvous rendezvous = {.rank = host.rank(),
                                       .size = ranks,
                                       .local_rank = host.local_rank(),
                                       .node = 10 + host.node(),
                                       .run = "1.2.3",
                                       .file = folder.path() / "not" / "there" / "yet",
                                       .timeout_seconds = 30};
        const std::unique_ptr<Device> device = make_device(DeviceKind::cuda, host.rank());
        const std::unique_ptr<Communicator> comm = make_nccl_communicator(rendezvous, *device);
        if (comm->topology() != host.topology()) {
          throw std::runtime_error("the ranks of nodes are others");
        }
        check_collectives(*comm);
        check_on_device(*comm, *device, host);
        const uint64_t allocations = device->ledger().allocations();
        comm->any_rank(true);
        comm->barrier().wait();
        if (device->ledger().allocations() != allocations) {
          throw std::runtime_error("agreement takes memory each time");
        }
        host.barrier().wait();
      });
  CHECK(errors == std::vector<std::string>(3));
  end.check();
}

}  // namespace
}  // namespace fp8train::test
