#pragma once
// fp8train bench gemm-error: how far the product that a plan computes is from the exact
// one. A property of the formats and of how sums are formed, not of the machine's speed.

#include <cstdint>
#include <string>
#include <vector>

#include "device/device.h"

namespace fp8train {

struct GemmErrorCase {
  int64_t rows = 64;          ///< of x, tokens
  int64_t columns = 64;       ///< of the product
  int64_t contracted = 4096;  ///< K
  /// One row of x in sixteen is this many times as large as the others, whose error is measured.
  double outliers = 1.0;
  uint64_t seed = 1;
};

/// The relative error (two-norms) of the median row of x w^T against its value in fp64: x and w
/// standard normal, w times 0.02, both rounded to bf16 before anything else. The product is fprop
/// of the plan, with an fp32 result.
double gemm_error(Device& device, const std::string& plan, const GemmErrorCase& setting);

}  // namespace fp8train
