#include "device/cuda/cuda_device.h"

namespace fp8train {

DeviceTraits cuda_traits() {
  return {.fp8_gemm_along_k_only = true};
}

}  // namespace fp8train
