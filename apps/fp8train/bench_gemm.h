#pragma once
// fp8train bench gemm: products by the format of their operands, alone and with one cast of each
// operand from bf16, against bf16 in the same run. A layer casts its weight once per optimizer step
// only, and where the units want one order of operands x and dy in both orientations.

#include <cstdint>
#include <string>
#include <vector>

#include "device/device.h"

namespace fp8train {

struct GemmShape {
  int64_t m = 0, n = 0, k = 0;
};

/// c[m, n] of a[m, k] and b[n, k]; FLOP/s.
struct GemmResult {
  GemmShape shape;
  std::string
      operands;  ///< "fp32", "bf16", "e4m3 delayed", "e4m3 row", "e4m3 1x128 x 128x128", ...
  std::string engine;
  std::string dequantized_because;  ///< empty: multiplied as codes
  double alone;                     ///< of the product
  double with_casts;                ///< of the product and the casts of both operands
  double of_bf16;                   ///< with_casts, of the bf16 product of this shape
  double share_of_ceiling;  ///< with_casts, of the best product alone with operands of as many bits
};

/// Each product, and each product with casts, is measured for `seconds`.
std::vector<GemmResult> gemm_results(Device& device, const std::vector<GemmShape>& shapes,
                                     double seconds);

/// "512,1024x4096x512": square shapes, or M x N x K. Throws ConfigError, which names --sizes.
std::vector<GemmShape> parse_gemm_shapes(const std::string& text);

}  // namespace fp8train
