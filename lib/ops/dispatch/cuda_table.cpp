#include "ops/dispatch/cuda_table.h"

namespace fp8train::ops::cuda {

const OpTable& table() {
  static const OpTable table = [] {
    OpTable filled{};
    fill_activation(filled);
    fill_adamw(filled);
    fill_attention(filled);
    fill_cross_entropy(filled);
    fill_elementwise(filled);
    fill_embedding(filled);
    fill_gemm(filled);
    fill_granule_parts(filled);
    fill_kv_cache(filled);
    fill_norm(filled);
    fill_optimizer(filled);
    fill_quantize(filled);
    fill_quantize_granules(filled);
    fill_rope(filled);
    fill_scaled_gemm(filled);
    fill_shared_wire(filled);
    fill_smoothing(filled);
    fill_storage(filled);
    fill_wire(filled);
    return filled;
  }();
  return table;
}

}  // namespace fp8train::ops::cuda
