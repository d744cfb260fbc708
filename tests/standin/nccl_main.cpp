// Started by mpirun; see CMakeLists.txt. Ranks are processes with a described GPU each, and what
// crosses between them goes over the fake NCCL: copies are real, so that what arrives is checked.

#include <chrono>
#include <cstdio>
#include <exception>
#include <string_view>
#include <thread>

#include "base/error.h"
#include "comm/backends/backends.h"
#include "comm/collective_checks.h"
#include "comm/group_checks.h"

namespace {

using fp8train::Buffer;
using fp8train::Communicator;
using fp8train::Device;

void check_all(Communicator& comm, Device& device, Communicator& host) {
  fp8train::test::check_collectives(comm);
  fp8train::test::check_on_device(comm, device, host);
  fp8train::test::check_on_device(*comm.duplicate(), device, host);
  const auto node = host.node_group();
  fp8train::test::check_on_device(*comm.node_group(), device, *node);
  const auto peers = host.peer_group();
  fp8train::test::check_on_device(*comm.peer_group(), device, *peers);
}

/// Throws what the watchdog has found meanwhile: the next operation is refused.
void gather(Communicator& comm, Device& device, size_t bytes) {
  const Buffer memory(device, 256, fp8train::MemoryCategory::workspace);
  for (int i = 0; i < 2; ++i) {
    comm.all_gather(device.stream(), memory.data(), memory.data(), bytes).wait();
    device.synchronize();  // for ever, but for the watchdog
  }
}

/// The last rank stays away for longer than the others wait.
void stay_away(Communicator& comm, Device& device) {
  comm.set_timeout(0.5);
  if (comm.rank() == comm.size() - 1) {
    std::this_thread::sleep_for(std::chrono::seconds(20));
    return;
  }
  gather(comm, device, 16);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view mode = argc > 1 ? argv[1] : "";
  std::unique_ptr<Communicator> host;
  try {
    host = fp8train::make_mpi_communicator();
    const auto device = fp8train::make_device(fp8train::DeviceKind::cuda, host->rank());
    const auto comm = fp8train::make_nccl_communicator(*host, *device);
    if (mode == "mismatched") {
      gather(*comm, *device, comm->rank() == 0 ? 16 : 32);
    } else if (mode == "groups") {
      fp8train::test::check_programs(*comm, *device, 38,
                                     {.meshes = 3, .programs = 6, .in_stream_order = true});
    } else if (mode == "missing") {
      stay_away(*comm, *device);
    } else {
      check_all(*comm, *device, *host);
    }
    std::printf("%s: ok\n", comm->description().c_str());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    if (host != nullptr) {
      host->fail(1);
    }
    return 1;
  }
}
