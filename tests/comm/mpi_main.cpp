// Started by mpirun; see CMakeLists.txt. No Catch: each rank is a process, and one must say what is
// wrong.

#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <thread>

#include "comm/backends.h"
#include "comm/collective_checks.h"

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

}  // namespace

int main(int argc, char** argv) {
  std::unique_ptr<fp8train::Communicator> comm;
  try {
    comm = fp8train::make_mpi_communicator();
    if (argc > 1 && std::strcmp(argv[1], "missing") == 0) {
      stay_away(*comm);
      return 0;
    }
    fp8train::test::check_collectives(*comm);
    fp8train::test::check_reductions(*comm);
    fp8train::test::check_exchanges(*comm);
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
