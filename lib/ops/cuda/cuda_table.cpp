#include "ops/cuda/cuda_table.h"

namespace fp8train::ops::cuda {

const OpTable& table() {
  static const OpTable table = [] {
    OpTable filled{};
    fill_elementwise(filled);
    fill_gemm(filled);
    fill_quantize(filled);
    fill_quantize_granules(filled);
    return filled;
  }();
  return table;
}

}  // namespace fp8train::ops::cuda
