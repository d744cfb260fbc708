#include <utility>

#include "base/error.h"
#include "comm/backends/backends.h"
#include "comm/launch.h"

namespace fp8train {

bool meets_by_file(const CommSettings& settings, const Launch& launch) {
  if (settings.backend == CommBackend::self || settings.backend == CommBackend::mpi) {
    return false;
  }
  const bool alone = launch.slurm_step_tasks > 1 && !(launch.wants_mpi() && has_mpi());
  return settings.bootstrap == CommBootstrap::file ||
         (settings.bootstrap == CommBootstrap::automatic && settings.backend == CommBackend::nccl &&
          alone);
}

std::unique_ptr<Communicator> make_communicator(const CommSettings& settings) {
  const Launch launch = detect_launch();
  const CommBackend backend = settings.backend;
  if (launch.torch_processes > 1 && backend != CommBackend::self) {
    // Before MPI is started, whose address all processes of a node may have inherited.
    check_launch(launch, 1);
  }
  std::unique_ptr<Communicator> made;
  const bool by_file = meets_by_file(settings, launch);
  const bool several = launch.wants_mpi() && has_mpi();
  if (backend == CommBackend::mpi || (backend != CommBackend::self && !by_file && several)) {
    made = make_mpi_communicator(settings.timeout_seconds);
  } else {
    made = make_self_communicator();
  }
  if (backend != CommBackend::self && !by_file) {
    check_launch(launch, made->size());
  }
  made->set_timeout(settings.timeout_seconds);
#ifndef NDEBUG
  if (made->size() > 1) {
    made = make_checked_communicator(std::move(made));
  }
#endif
  return made;
}

}  // namespace fp8train
