// Stands in where the build has no MPI.

#include "base/error.h"
#include "comm/backends/backends.h"

namespace fp8train {

bool has_mpi() {
  return false;
}

std::unique_ptr<Communicator> make_mpi_communicator(double /*start_seconds*/) {
  throw CommError(
      "this build has no MPI. Install an MPI with its headers (Debian: libopenmpi-dev) and "
      "configure again; -DFP8TRAIN_MPI=ON says what is missing");
}

}  // namespace fp8train
