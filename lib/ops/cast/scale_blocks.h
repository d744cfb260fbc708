#pragma once
// The layout of a matrix's scales, one for each block, and the rule for the scale of a block; host
// and device.

#include <cstdint>

#include "base/host_device.h"
#include "numeric/bits.h"
#include "numeric/scale.h"
#include "tensor/encoded.h"

namespace fp8train::ops {

/// The blocks of a matrix and the offsets of their scales.
struct ScaleGrid {
  int64_t height, width;              ///< elements of a block
  int64_t rows, columns;              ///< blocks; those at the lower and right edge may be smaller
  int64_t row_stride, column_stride;  ///< between scales
  int64_t count;                      ///< scales with padding
  int64_t swizzled_tiles;  ///< 0, or tiles of [128, 4] scales side by side: 1x32 for cuBLASLt

  FP8TRAIN_HD int64_t offset(int64_t row, int64_t column) const {
    if (swizzled_tiles == 0) {
      return row * row_stride + column * column_stride;
    }
    const int64_t tile = row / 128 * swizzled_tiles + column / 4;
    return tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + column % 4;
  }
};

/// Host. The blocks along the rows of a matrix [rows, columns]; not for groups.
ScaleGrid block_grid(ScaleBlock block, int64_t rows, int64_t columns);

/// Host. The same of the blocks whose scales are stored (ScaleBlock::as_stored()).
ScaleGrid scale_grid(ScaleBlock block, int64_t rows, int64_t columns, ScaleLayout layout);

/// Host. Throws InternalError unless the format has a scale for each block and casts make it
/// (block_formats()).
void check_blockwise_format(const TensorFormat& format);

/// Host. Throws InternalError unless `view` holds codes of `shape` with their scales.
void check_blockwise(const Encoded& view, const Shape& shape);

/// How the scale of a block follows from its amax: numeric/scale.h's current_scale, or one of its
/// scales in e8m0.
struct BlockRule {
  float format_max;
  float amax_epsilon;   ///< a smaller amax counts as this
  float value_for_inf;  ///< scale where format_max / amax overflows: the input type's maximum
  bool pow2;
  bool e8m0;
  bool down = false;   ///< e8m0_scale_down
  uint32_t carry = 0;  ///< its argument

  /// Returns the scale that reads the block, in e8m0.
  FP8TRAIN_HD fp8train::e8m0 exponent(float amax) const {
    return down ? e8m0_scale_down(amax, format_max, carry) : e8m0_scale(amax, format_max);
  }
  /// Returns the factor by which values of a block are multiplied.
  FP8TRAIN_HD float factor(float amax) const {
    return e8m0 ? decode_reciprocal(exponent(amax))
                : current_scale(amax, format_max, amax_epsilon, pow2, value_for_inf);
  }
};

/// Host. Returns the rule for the scales of the format.
BlockRule block_rule(const TensorFormat& format, DType input);

/// The scales of one orientation, by raw pointers. Exactly one of scale_inv, exponents and under is
/// not null.
struct BlockScales {
  ScaleGrid grid;
  float* scale;  ///< the scales themselves, next to scale_inv; may be null
  float* scale_inv;
  e8m0* exponents;
  e4m3* under;  ///< scales under a scale of the tensor

  /// Keeps the scale of a block, if there is one at that position.
  FP8TRAIN_HD void keep(int64_t row, int64_t column, float amax, const BlockRule& rule) const {
    if (row >= grid.rows || column >= grid.columns) {
      return;
    }
    const int64_t at = grid.offset(row, column);
    const float scaled_by = rule.factor(amax);
    if (exponents != nullptr) {
      exponents[at] = rule.exponent(amax);
    } else {
      scale_inv[at] = reciprocal(scaled_by);
    }
    if (scale != nullptr) {
      scale[at] = scaled_by;
    }
  }
  /// Keeps the scale of a block of `height` rows wherever it is stored: once, or for each row.
  FP8TRAIN_HD void keep_block(int64_t row, int64_t column, int64_t height, float amax,
                              const BlockRule& rule) const {
    const int64_t copies = height / grid.height;
    for (int64_t i = row * copies; i < (row + 1) * copies; ++i) {
      keep(i, column, amax, rule);
    }
  }
  /// The factor that codes of a block are multiplied by; a scale of the tensor comes on top.
  FP8TRAIN_HD float inverse(int64_t row, int64_t column) const {
    const int64_t at = grid.offset(row, column);
    return under != nullptr       ? decode(under[at])
           : exponents != nullptr ? decode(exponents[at])
                                  : scale_inv[at];
  }
};

/// ops::find_block_scales (ops/cast/blockwise_parts.h), for one block at a time.
struct FindBlockScales {
  const float* amax;
  ScaleGrid blocks;
  bool transposed;
  BlockScales scales;
  BlockRule rule;

  FP8TRAIN_HD void keep(int64_t i) const {
    const int64_t row = i / blocks.columns;
    const int64_t column = i % blocks.columns;
    scales.keep_block(transposed ? column : row, transposed ? row : column, blocks.height, amax[i],
                      rule);
  }
};

/// Host. Returns the scales of `view` as kernels index them; its format and layout may be those of
/// the other orientation, where it is not wanted.
BlockScales block_scales(const Encoded& view, const TensorFormat& format, ScaleLayout layout);
inline BlockScales block_scales(const Encoded& view) {
  return block_scales(view, view.format, view.layout);
}
/// Host: the scales of a matrix of `shape` alone.
BlockScales block_scales(const View& scales, const TensorFormat& format, ScaleLayout layout,
                         const Shape& shape);

}  // namespace fp8train::ops
