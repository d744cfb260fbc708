#pragma once
// Formats with a scale for each block, and memory for a cast to them; for the cpu's tests and for
// those that compare devices.

#include <cmath>
#include <cstdint>
#include <vector>

#include "numeric/with_type.h"
#include "ops/cast/block_formats.h"
#include "ops/cast/scale_blocks.h"
#include "ops/op_test_support.h"

namespace fp8train::test {

/// All that casts make with codes of a byte.
inline std::vector<TensorFormat> blockwise_formats() {
  std::vector<TensorFormat> formats;
  for (const DType code_type : ByteCodes::kTypes) {
    for (const ops::BlockFormat& line : ops::block_formats()) {
      for (const ScaleType scale_type : line.scales) {
        TensorFormat format = plain(code_type);
        format.block = line.block;
        format.scale_type = scale_type;
        format.policy = ScalePolicy::current;
        if (line.block != per::tensor && ops::why_not_cast(format).empty()) {
          formats.push_back(format);
        }
      }
    }
  }
  return formats;
}

constexpr ScaleLayout kScaleLayouts[] = {ScaleLayout::row_major, ScaleLayout::cublaslt};

struct Extents {
  int64_t rows, columns;
};
constexpr Extents kBlockExtents[] = {{1, 1},     {3, 5},     {16, 32},  {128, 128},
                                     {130, 136}, {144, 264}, {300, 33}, {33, 520}};

/// Values of very different size from block to block: whole blocks of zeros, of subnormals,
/// with one outlier, and, unless `finite`, with infinities and NaN.
inline std::vector<float> block_values(const Extents& extents, uint32_t seed, bool finite) {
  std::vector<float> values = random_values(extents.rows * extents.columns, seed);
  for (int64_t row = 0; row < extents.rows; ++row) {
    for (int64_t column = 0; column < extents.columns; ++column) {
      float& value = values[static_cast<size_t>(row * extents.columns + column)];
      const int64_t kind = (row / 8 + column / 32 + seed) % 9;
      value = kind == 0   ? std::copysign(0.0F, value)
              : kind == 1 ? value * 1e-40F
              : kind == 2 ? value * 1e36F
                          : std::ldexp(value, static_cast<int>(kind) * 3 - 15);
      const bool special = (row * 31 + column * 17 + seed) % 211 == 0;
      if (special && kind == 3) {
        value *= 1e4F;
      } else if (special && kind == 4 && !finite) {
        value = std::copysign(INFINITY, value);
      } else if (special && kind == 5 && !finite) {
        value = NAN;
      }
    }
  }
  return values;
}

}  // namespace fp8train::test
