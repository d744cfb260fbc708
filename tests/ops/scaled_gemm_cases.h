#pragma once
// Operands of scaled GEMMs on the host, for the cpu's tests and for those that compare devices.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "numeric/convert.h"
#include "ops/blockwise_cases.h"
#include "ops/cast/block_formats.h"
#include "ops/cast/quantize.h"
#include "ops/gemm/gemm_support.h"

namespace fp8train::test {

/// Scales are of `scale_type`, or of the block's first type where it does not have that.
inline TensorFormat blockwise_format(DType code, ScaleBlock block,
                                     ScaleType scale_type = ScaleType::f32) {
  const auto& types = ops::find_block_format(block)->scales;
  TensorFormat format = plain(code);
  format.block = block;
  format.scale_type =
      std::ranges::find(types, scale_type) != types.end() ? scale_type : types.front();
  format.policy = ScalePolicy::current;
  return format;
}

/// A matrix [rows, k] cast on the cpu; padding between scales is zero.
struct ScaledMatrix {
  ScaledMatrix(const TensorFormat& wanted, ScaleLayout scale_layout, int64_t rows, int64_t k,
               const std::vector<float>& values)
      : format(wanted),
        layout(scale_layout),
        grid(ops::scale_grid(format.block, rows, k, layout)),
        columns(k),
        codes(format.dtype, {rows, k}),
        scale_inv(dtype_of(format.scale_type), {grid.count}),
        scale(DType::f32, {grid.count}) {
    Array x(DType::f32, {rows, k}, values);
    ops::quantize(cpu_stream(), x, {operand().tensor}, nullptr, nullptr);
  }

  ops::GemmOperand operand(bool transposed = false) {
    return {with_cast_scales(codes, format, scale_inv, scale.as<float>(), layout), transposed};
  }

  /// What the elements stand for; only for ScaleLayout::row_major.
  std::vector<double> values() const {
    std::vector<double> result;
    for (int64_t i = 0; i < codes.count(); ++i) {
      const int64_t at = i / columns / grid.height * grid.columns + i % columns / grid.width;
      const float factor = dtype_of(format.scale_type) == DType::e8m0
                               ? decode(e8m0{scale_inv.bytes()[static_cast<size_t>(at)]})
                               : scale_inv.get(at);
      result.push_back(static_cast<double>(factor) * static_cast<double>(codes.get(i)));
    }
    return result;
  }

  TensorFormat format;
  ScaleLayout layout;
  ops::ScaleGrid grid;
  int64_t columns;
  Array codes, scale_inv, scale;
};

/// Normal numbers whose size changes from block to block.
inline std::vector<float> uneven_values(int64_t rows, int64_t columns, uint32_t seed) {
  std::vector<float> values = random_values(rows * columns, seed);
  for (int64_t i = 0; i < rows * columns; ++i) {
    const int64_t kind = i / columns / 8 + i % columns / 32 + seed;
    values[static_cast<size_t>(i)] *= 0.5F + 0.375F * static_cast<float>(kind % 5);
  }
  return values;
}

struct FormatPair {
  TensorFormat a, b;
};

/// Formats that have a product with a scale for each block: of each pair of blocks, each element
/// type of `a` and each type of scales, next to e4m3, or to int8 where only that goes with `a`.
/// Those of e4m3 scales are in nvfp4_test.cpp.
inline std::vector<FormatPair> format_pairs() {
  std::vector<FormatPair> pairs;
  for (const ops::BlockPair& blocks : ops::block_pairs()) {
    const ops::BlockFormat& line = *ops::find_block_format(blocks.a);
    for (const ScaleType scale_type : line.scales) {
      for (const DType type : line.multiplied) {
        const DType other = type == DType::i8 ? type : DType::e4m3;
        const FormatPair pair = {blockwise_format(type, blocks.a, scale_type),
                                 blockwise_format(other, blocks.b, scale_type)};
        if (blocks.a != per::tensor && !pair.a.is_two_level()) {
          pairs.push_back(pair);
        }
      }
    }
  }
  // fp32 scales on one side only
  pairs.push_back({blockwise_format(DType::e4m3, per::block_1x128, ScaleType::pow2),
                   blockwise_format(DType::e5m2, per::block_128x128, ScaleType::f32)});
  return pairs;
}

}  // namespace fp8train::test
