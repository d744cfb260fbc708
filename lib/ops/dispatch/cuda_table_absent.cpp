#include "base/error.h"
#include "ops/dispatch/cuda_operations.h"

namespace fp8train::ops::cuda {

const OpTable& table() {
  throw DeviceError("no CUDA operations in this build; use `device: cpu`");
}

}  // namespace fp8train::ops::cuda
