// Started by mpirun; see CMakeLists.txt. No Catch: each rank is a process, and one must say what is
// wrong.

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <thread>
#include <utility>

#include "base/error.h"
#include "comm/backends/backends.h"
#include "comm/collective_checks.h"
#include "comm/group_checks.h"

namespace {

/// The last rank stays away; the others must say so.
void stay_away(fp8train::Communicator& comm) {
  comm.set_timeout(0.5);
  if (comm.rank() == comm.size() - 1) {
    std::this_thread::sleep_for(std::chrono::seconds(20));
    return;
  }
  comm.all_gather_values(comm.rank());
}

/// Rank 0 sends 4 bytes to rank 1, which does what `mode` says.
void break_message(fp8train::Communicator& comm, const std::string& mode) {
  comm.set_timeout(0.5);
  std::array<char, 8> data = {};
  fp8train::Message message = {.peer = 1 - comm.rank(),
                               .sends = comm.rank() == 0,
                               .data = data.data(),
                               .bytes = mode == "longer" ? 8U : 4U};
  if (comm.rank() == 1) {
    if (mode == "silent") {
      std::this_thread::sleep_for(std::chrono::seconds(20));
    } else if (mode == "dies") {
      comm.fail(86);
    }
    message.bytes = mode == "shorter" ? 8 : 4;
  }
  comm.exchange(fp8train::Communicator::host_stream(), {&message, 1}).wait();
}

template <typename T>
void call_with(fp8train::Communicator& comm) {
  comm.all_gather_values(T{1});
}

/// Gradients on a GPU, or on the host shim. 77: neither is here.
int exchange_on_cuda(fp8train::Communicator& comm) {
  std::unique_ptr<fp8train::Device> device;
  try {
    device = fp8train::make_device(fp8train::DeviceKind::cuda);
  } catch (const fp8train::DeviceError& error) {
    std::fprintf(stderr, "left out: %s\n", error.what());
    return 77;
  }
  const auto staged = fp8train::make_staged_communicator(comm, *device);
  fp8train::test::check_exchanges(*staged, *device);
  std::printf("%s: ok\n", staged->description().c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::unique_ptr<fp8train::Communicator> comm;
  try {
    comm = fp8train::make_mpi_communicator();
    if (argc > 1 && std::strcmp(argv[1], "missing") == 0) {
      stay_away(*comm);
      return 0;
    }
    if (argc > 1 && std::strcmp(argv[1], "checked") == 0) {
      const auto checked = fp8train::make_checked_communicator(std::move(comm));
      comm = checked->duplicate();
      comm->rank() == 1 ? call_with<uint64_t>(*comm) : call_with<uint32_t>(*comm);
      return 0;
    }
    if (argc > 2 && std::strcmp(argv[1], "message") == 0) {
      break_message(*comm, argv[2]);
      return 0;
    }
    if (argc > 1 && std::strcmp(argv[1], "groups") == 0) {
      fp8train::test::check_programs(*comm, *fp8train::make_device(fp8train::DeviceKind::cpu), 36,
                                     {.meshes = 12, .programs = 80});
      return 0;
    }
    if (argc > 1 && std::strcmp(argv[1], "cuda") == 0) {
      return exchange_on_cuda(*comm);
    }
    fp8train::test::check_collectives(*comm);
    fp8train::test::check_reductions(*comm);
    fp8train::test::check_exchanges(*comm, *fp8train::make_device(fp8train::DeviceKind::cpu));
    std::printf("%s: ok\n", comm->description().c_str());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    if (comm != nullptr) {
      comm->fail(1);
    }
    return 1;
  }
}
