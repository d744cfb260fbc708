#include "base/error.h"
#include "comm/backends.h"
#include "comm/launch.h"

namespace fp8train {

std::unique_ptr<Communicator> make_communicator(const CommSettings& settings) {
  const Launch launch = detect_launch();
  std::unique_ptr<Communicator> made;
  if (settings.backend == "self") {
    made = make_self_communicator();
  } else if (settings.backend == "mpi") {
    made = make_mpi_communicator();
  } else if (settings.backend == "auto") {
    made = launch.wants_mpi() && has_mpi() ? make_mpi_communicator() : make_self_communicator();
  } else {
    throw ConfigError("comm.backend: '" + settings.backend + "' is not one of auto, self, mpi");
  }
  if (settings.backend != "self") {
    check_launch(launch, made->size());
  }
  made->set_timeout(settings.timeout_seconds);
  return made;
}

}  // namespace fp8train
