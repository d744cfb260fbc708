#include <initializer_list>

#include "device/cuda/cuda_device.h"

namespace fp8train {
namespace {

// The size that cuBLASLt's documentation recommends.
constexpr size_t kWorkspaceHopper = size_t{32} << 20;
constexpr size_t kWorkspaceBefore = size_t{4} << 20;

// cuBLAS documentation, cublasLtMatmulMatrixScale_t.
Fp8Products products_of(int capability) {
  using enum ScalePair;
  Fp8Products products(Fp8Support::none);
  const auto add = [&products](std::initializer_list<ScalePair> pairs) {
    for (const ScalePair pair : pairs) {
      products.set(pair, Fp8Support::any);
    }
  };
  if (capability >= 89) {
    add({tensor});
  }
  if (capability == 90) {
    add({row, block_1x128_1x128, block_1x128_128x128, block_128x128_1x128});
  }
  if (capability >= 100) {
    add({block_1x32, block_1x16});
  }
  return products;
}

}  // namespace

DeviceTraits cuda_traits(int capability, size_t memory) {
  return {.fp8_gemm_along_k_only = true,
          .fp8_gemm_by_library = true,
          .fp8_products = products_of(capability),
          .max_head_dim = 256,  // ops/attention/attention_tiles.cuh
          .memory = memory,
          .library_workspace = capability >= 90 ? kWorkspaceHopper : kWorkspaceBefore};
}

}  // namespace fp8train
