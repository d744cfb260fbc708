// Communicators of NCCL against those of threads, and exchanges on the GPU against the cpu's: on as
// many GPUs as are here (one rank on one), or on the host shim before the fake NCCL.

#include <catch2/catch.hpp>
#include <cstring>
#include <stdexcept>

#include "comm/collective_checks.h"
#include "comm/group_checks.h"
#include "comm/nccl_ranks.h"
#include "support/rank_threads.h"

namespace fp8train::test {
namespace {

std::vector<Topology> topologies() {
  std::vector<Topology> made;
  for (const int wanted : {1, 2, 3, 4}) {
    const int ranks = gpus_for_ranks(wanted);
    if (ranks == wanted) {
      made.push_back(Topology::blocks(ranks, ranks));
    }
    if (ranks == 4) {
      made.push_back(Topology::blocks(4, 2));
    }
  }
  return made;
}

void check_all(const NcclBody& body) {
  for (const Topology& topology : topologies()) {
    if (gpus_for_ranks(topology.size()) < topology.size()) {
      continue;
    }
    INFO(topology.size() << " ranks on " << topology.nodes() << " nodes");
    for (const std::string& error : run_nccl_ranks(topology, body)) {
      CHECK(error.empty());
    }
  }
}

TEST_CASE("nccl: every collective, on memory of the host and of the GPU", "[nccl]") {
  check_all([](Communicator& comm, Device& device, Communicator& host) {
    check_collectives(comm);
    check_on_device(comm, device, host);
    check_on_device(*comm.duplicate(), device, host);
    check_on_device(*comm.node_group(), device, *host.node_group());
    check_on_device(*comm.peer_group(), device, *host.peer_group());
  });
}

TEST_CASE("nccl: random programs over all groups of random meshes", "[nccl][groups]") {
  check_all([](Communicator& comm, Device& device, Communicator& /*host*/) {
    if (comm.size() > 1) {
      check_programs(comm, device, 37, {.meshes = 5, .programs = 20, .in_stream_order = true});
    }
  });
}

TEST_CASE("nccl: sums over ranks", "[nccl]") {
  check_all([](Communicator& comm, Device& /*device*/, Communicator& /*host*/) {
    check_reductions(comm);
  });
}

TEST_CASE("nccl: every wire against sums in fp64", "[nccl][exchange]") {
  check_all([](Communicator& comm, Device& device, Communicator& /*host*/) {
    check_exchanges(comm, device);
  });
}

/// The bits of the cpu: casts and sums are the same code, and bytes are only moved.
TEST_CASE("nccl: every wire has the bits of the cpu's", "[nccl][exchange]") {
  check_all([](Communicator& comm, Device& device, Communicator& host) {
    const std::unique_ptr<Device> cpu = make_device(DeviceKind::cpu);
    const Traffic met = host.traffic();
    const std::vector<Exchanged> want = exchange_all(host, *cpu);
    const std::vector<Exchanged> got = exchange_all(comm, device);
    for (size_t i = 0; i < want.size(); ++i) {
      const size_t bytes = want[i].values.size() * sizeof(float);
      if (std::memcmp(want[i].values.data(), got[i].values.data(), bytes) != 0) {
        throw std::runtime_error(want[i].name + ": not the cpu's bits");
      }
    }
    Traffic both = comm.traffic();
    both += met;
    if (both != host.traffic()) {
      throw std::runtime_error("the same exchanges count other bytes");
    }
  });
}

TEST_CASE("nccl: the caller's stream waits, and the host does not", "[nccl]") {
  const int ranks = gpus_for_ranks(2);
  if (ranks == 0) {
    return;
  }
  for (const std::string& error : run_nccl_ranks(
           Topology::blocks(ranks, ranks),
           [](Communicator&comm, Device&device, Communicator& /*host*/) {
             const Buffer all(device, static_cast<size_t>(comm.size()), MemoryCategory::workspace);
             const Buffer copy(device, all.bytes(), MemoryCategory::workspace);
             const auto own = static_cast<uint8_t>(comm.rank() + 1);
             void* part = static_cast<uint8_t*>(all.data()) + comm.rank();
             device.copy_from_host(part, &own, 1);
             Work gather = comm.all_gather(device.stream(), part, all.data(), 1);
             if (!gather.done()) {
               throw std::runtime_error("wait() would keep the host");
             }
             gather.wait();
             std::vector<uint8_t> arrived(all.bytes());
             device.copy_to_host(arrived.data(), all.data(), all.bytes());
             for (size_t rank = 0; rank < arrived.size(); ++rank) {
               if (arrived[rank] != rank + 1) {
                 throw std::runtime_error("the stream did not wait");
               }
             }
           })) {
    CHECK(error.empty());
  }
}

}  // namespace
}  // namespace fp8train::test
