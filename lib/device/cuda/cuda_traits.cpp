#include "device/cuda/cuda_device.h"

namespace fp8train {
namespace {

// What cuBLASLt's documentation recommends.
constexpr size_t kWorkspaceHopper = size_t{32} << 20;
constexpr size_t kWorkspaceBefore = size_t{4} << 20;

}  // namespace

// Scale modes by capability: research notes on cuBLASLt's scale modes, after its documentation.
DeviceTraits cuda_traits(int capability, size_t memory) {
  const bool hopper = capability == 90;
  return {.fp8_gemm_along_k_only = true,
          .scaled_gemm_by_library = true,
          .row_scaled_gemm = hopper,
          .block_scaled_gemm = hopper,
          .mx_scaled_gemm = capability >= 100,
          .memory = memory,
          .library_workspace = capability >= 90 ? kWorkspaceHopper : kWorkspaceBefore};
}

}  // namespace fp8train
