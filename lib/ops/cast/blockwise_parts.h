#pragma once
// Casts of a part of a matrix that has a scale for each block, where blocks reach beyond the part:
// the largest magnitudes of all parts are combined first, and then every part is cast to the codes
// that quantize() would give it in the whole matrix. Asynchronous.

#include <cstdint>

#include "device/stream.h"
#include "ops/cast/quantize.h"
#include "ops/cast/scale_blocks.h"
#include "tensor/encoded.h"
#include "tensor/view.h"

namespace fp8train::ops {

/// A part of a matrix: the elements first, first + 1, .. of a matrix [rows, last extent],
/// row-major.
struct MatrixPart {
  ConstView values;  ///< fp32, flat; may be empty
  int64_t first = 0;
  Shape matrix;
};

/// amax[block] = max |x| over the elements of the part that lie in it, NaN-propagating; 0 where
/// none does. amax: fp32, one for each block along rows, row-major.
void blockwise_part_amax(Stream stream, const MatrixPart& x, ScaleBlock block, View amax);

/// The arguments of quantize_blockwise_part().
struct BlockwisePartCast {
  MatrixPart x;
  TensorFormat format;  ///< as in quantize()
  ConstView amax;       ///< amax of the blocks of the whole matrix, from blockwise_part_amax()
  View codes;           ///< as many as x has values
  /// fp32 [elements of x]: the decoded codes. Empty: not wanted.
  View rounded;
  QuantizeStatistics* statistics = nullptr;  ///< nullable; overwritten
};
/// Casts the part with the scales that follow from `amax`, as quantize() casts the whole matrix.
void quantize_blockwise_part(Stream stream, const BlockwisePartCast& call);

/// The arguments of find_block_scales().
struct BlockScaleSearch {
  ConstView amax;
  Shape shape;  ///< shape of the matrix
  TensorFormat format;
  ScaleLayout layout = ScaleLayout::row_major;
  bool transposed = false;
  View scales;

  /// Returns the shape of the matrix whose scales are found.
  Shape seen() const {
    return transposed ? Shape{shape.back(), shape.rows()} : Shape{shape.rows(), shape.back()};
  }
  /// Returns the arguments that the kernels take.
  FindBlockScales finder() const {
    return {amax.as<float>(), block_grid(format.block, shape.rows(), shape.back()), transposed,
            block_scales(scales, format, layout, seen()), block_rule(format, DType::f32)};
  }
};

/// Writes the scales that quantize() would store of a matrix of `shape`. amax: from
/// blockwise_part_amax(). `transposed` (squares only): of the transposed matrix. scales: fp32 or
/// e8m0, as many as scale_grid() says; padding is not written.
void find_block_scales(Stream stream, const BlockScaleSearch& call);

}  // namespace fp8train::ops
