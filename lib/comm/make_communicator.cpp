#include <utility>

#include "base/error.h"
#include "comm/backends.h"
#include "comm/launch.h"

namespace fp8train {

bool meets_by_file(const CommSettings& settings, const Launch& launch) {
  if (settings.backend == "self" || settings.backend == "mpi") {
    return false;
  }
  const bool alone = launch.slurm_step_tasks > 1 && !(launch.wants_mpi() && has_mpi());
  return settings.bootstrap == "file" ||
         (settings.bootstrap == "auto" && settings.backend == "nccl" && alone);
}

std::unique_ptr<Communicator> make_communicator(const CommSettings& settings) {
  const Launch launch = detect_launch();
  const std::string& backend = settings.backend;
  std::unique_ptr<Communicator> made;
  const bool by_file = meets_by_file(settings, launch);
  if (backend != "auto" && backend != "self" && backend != "mpi" && backend != "nccl") {
    throw ConfigError("comm.backend: '" + backend + "' is not one of auto, self, mpi, nccl");
  }
  const bool several = launch.wants_mpi() && has_mpi();
  if (backend == "mpi" || (backend != "self" && !by_file && several)) {
    made = make_mpi_communicator(settings.timeout_seconds);
  } else {
    made = make_self_communicator();
  }
  if (backend != "self" && !by_file) {
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
