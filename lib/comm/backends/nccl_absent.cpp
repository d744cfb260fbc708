// Stands in where the build has no NCCL.

#include "base/error.h"
#include "comm/backends/backends.h"
#include "comm/backends/nccl_library.h"

namespace fp8train {

std::string why_nccl_is_unusable() {
  return "this build has no NCCL; it needs CUDA and nccl.h when it is configured, and "
         "-DFP8TRAIN_NCCL=ON says what is missing";
}

std::unique_ptr<Communicator> make_nccl_communicator(Communicator& /*host*/, Device& /*device*/) {
  throw CommError(why_nccl_is_unusable());
}

std::unique_ptr<Communicator> make_nccl_communicator(const Rendezvous& /*rendezvous*/,
                                                     Device& /*device*/) {
  throw CommError(why_nccl_is_unusable());
}

}  // namespace fp8train
