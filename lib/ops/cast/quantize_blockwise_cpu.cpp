// Compiled once per CPU level. Casts with one scale for each block: along rows, along columns
// (the transposed operand) and in squares. Each piece of work is a block or a strip of them, and
// what is counted are integers, so that no number of threads changes a bit.

#include <type_traits>

#include "base/math.h"
#include "ops/cast/quantize_support_cpu.h"
#include "ops/cast/scale_blocks.h"
#include "ops/dispatch/cpu_operations.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {
namespace {

/// One cast of a matrix x [rows, columns].
template <typename X>
struct Cast {
  const X* x = nullptr;
  int64_t rows = 0, columns = 0;
  BlockRule rule = {};
  bool counted = false;  ///< what saturates and what becomes zero
  CastStep step = {};

  template <typename Code>
  FP8TRAIN_HD TransposedCast<X, Code> to_columns(Code* codes) const {
    return {x, rows, columns, codes, false, counted};
  }
};

/// The amax of a block from its largest magnitude; every NaN is the quiet NaN.
template <typename X>
FP8TRAIN_HD float amax_of(uint32_t magnitude, TypeTag<X> tag) {
  return max_magnitude(value_of_magnitude(magnitude, tag), 0.0F);
}

/// `length` elements from `begin` on, to their position among the codes.
template <typename X, typename Code>
FP8TRAIN_HD void cast_run(const Cast<X>& cast, int64_t begin, int64_t length, float factor,
                          Code* codes, CastCounts& counts) {
  encode_chunk(cast.x + begin, factor, codes + begin, length);
  if (cast.counted) {
    count_chunk(cast.x + begin, factor, codes + begin, length, counts);
  }
}

/// The amax of a block, which a step of a cast with scales of lines leaves, or finds, in the line's
/// scale.
template <typename X, typename Find>
FP8TRAIN_HD float amax_in_step(const Cast<X>& cast, const BlockScales& scales, int64_t line,
                               const Find& find_largest, CastCounts& counts) {
  if (cast.step == CastStep::codes) {
    return scales.scale[line];
  }
  const uint32_t largest = find_largest();
  counts.raise(largest);
  const float amax = amax_of(largest, TypeTag<X>{});
  if (cast.step == CastStep::amax) {
    scales.scale[line] = amax;
  }
  return amax;
}

/// Casts along rows, with blocks that lie in one row.
template <typename X, typename Code>
FP8TRAIN_HD CastCounts cast_rows(const Cast<X>& cast, const BlockScales& scales, Code* codes) {
  const ScaleGrid& grid = scales.grid;
  return count_pieces(cast.rows, cast.rows * cast.columns, [&](int64_t row, CastCounts& counts) {
    for (int64_t block = 0; block < grid.columns; ++block) {
      const int64_t begin = row * cast.columns + block * grid.width;
      const int64_t length = minimum(grid.width, cast.columns - block * grid.width);
      const auto find_largest = [&] { return largest_magnitude(cast.x + begin, length); };
      const float amax = amax_in_step(cast, scales, row, find_largest, counts);
      if (cast.step == CastStep::amax) {
        continue;
      }
      scales.keep(row, block, amax, cast.rule);
      cast_run(cast, begin, length, cast.rule.factor(amax), codes, counts);
    }
  });
}

/// The largest magnitudes of `width` columns over `height` rows.
template <typename X>
FP8TRAIN_HD void largest_of_columns(const X* x, int64_t height, int64_t width, int64_t stride,
                                    uint32_t* largest) {
  for (int64_t column = 0; column < width; ++column) {
    largest[column] = 0;
  }
  for (int64_t row = 0; row < height; ++row) {
    for (int64_t column = 0; column < width; ++column) {
      const uint32_t bits = magnitude_bits(x + row * stride + column);
      largest[column] = bits > largest[column] ? bits : largest[column];
    }
  }
}

/// Casts along columns, with blocks that lie in one column; the codes go to [columns, rows].
template <typename X, typename Code>
FP8TRAIN_HD CastCounts cast_columns(const Cast<X>& cast, const BlockScales& scales,
                                    Code* transposed) {
  const ScaleGrid& grid = scales.grid;
  const TransposedCast<X, Code> strips = cast.to_columns(transposed);
  const int64_t pieces = ceil_div(cast.columns, kTransposedTile) * grid.columns;
  return count_pieces(pieces, cast.rows * cast.columns, [&](int64_t piece, CastCounts& counts) {
    const int64_t block = piece % grid.columns;
    const int64_t column = piece / grid.columns * kTransposedTile;
    const int64_t width = minimum(kTransposedTile, cast.columns - column);
    const int64_t row = block * grid.width;
    const int64_t height = minimum(grid.width, cast.rows - row);
    uint32_t largest[kTransposedTile];
    float factors[kTransposedTile];
    if (cast.step != CastStep::codes) {
      largest_of_columns(cast.x + row * cast.columns + column, height, width, cast.columns,
                         largest);
    }
    for (int64_t i = 0; i < width; ++i) {
      const auto find_largest = [&] { return largest[i]; };
      const float amax = amax_in_step(cast, scales, column + i, find_largest, counts);
      if (cast.step != CastStep::amax) {
        scales.keep(column + i, block, amax, cast.rule);
      }
      factors[i] = cast.rule.factor(amax);
    }
    if (cast.step == CastStep::amax) {
      return;
    }
    const float* const each = factors;
    cast_strip(strips, {row, height, column, width}, each, counts);
  });
}

/// Squares of `side` x `side`: one scale for both orientations. Codes and transposed codes may each
/// be null.
template <typename X, typename Code>
FP8TRAIN_HD CastCounts cast_squares(const Cast<X>& cast, int64_t side, const BlockScales& scales,
                                    const BlockScales& scales_transposed, Code* codes,
                                    Code* transposed) {
  const int64_t across = ceil_div(cast.columns, side);
  const int64_t pieces = ceil_div(cast.rows, side) * across;
  return count_pieces(pieces, cast.rows * cast.columns, [&](int64_t piece, CastCounts& counts) {
    const int64_t i = piece / across;
    const int64_t j = piece % across;
    const int64_t height = minimum(side, cast.rows - i * side);
    const int64_t width = minimum(side, cast.columns - j * side);
    const int64_t first = i * side * cast.columns + j * side;
    uint32_t largest = 0;
    for (int64_t row = 0; row < height; ++row) {
      const uint32_t here = largest_magnitude(cast.x + first + row * cast.columns, width);
      largest = here > largest ? here : largest;
    }
    counts.raise(largest);
    const float amax = amax_of(largest, TypeTag<X>{});
    const float factor = cast.rule.factor(amax);
    if (codes != nullptr) {
      scales.keep_block(i, j, side, amax, cast.rule);
      for (int64_t row = 0; row < height; ++row) {
        cast_run(cast, first + row * cast.columns, width, factor, codes, counts);
      }
    }
    if (transposed != nullptr) {
      scales_transposed.keep_block(j, i, side, amax, cast.rule);
      CastCounts again;  // the same codes as above
      for (int64_t column = 0; column < width; column += kTransposedTile) {
        const int64_t strip_width = minimum(kTransposedTile, width - column);
        cast_strip(cast.to_columns(transposed), {i * side, height, j * side + column, strip_width},
                   factor, codes == nullptr ? counts : again);
      }
    }
  });
}

/// quantize_blocks() of known types.
template <typename X, typename Code>
FP8TRAIN_HD void cast_as(ConstView x, const QuantizedTensor& out, float* amax_out,
                         QuantizeStatistics* statistics, CastStep step) {
  const TensorFormat& format = out.format();
  const Cast<X> cast = {.x = x.as<X>(),
                        .rows = x.shape.rows(),
                        .columns = x.shape.back(),
                        .rule = block_rule(format, x.dtype),
                        .counted = statistics != nullptr,
                        .step = step};
  const BlockScales rowwise = block_scales(out.rowwise, format, out.either().layout);
  const BlockScales columnwise = block_scales(out.columnwise, format, out.either().layout);
  Code* codes = out.rowwise.codes.as<Code>();
  Code* transposed = out.columnwise.codes.as<Code>();
  CastCounts counts;
  if (format.block.is_square()) {
    counts = cast_squares(cast, format.block.rows, rowwise, columnwise, codes, transposed);
  } else {
    if (transposed != nullptr) {
      counts = cast_columns(cast, columnwise, transposed);
    }
    if (codes != nullptr) {
      counts = cast_rows(cast, rowwise, codes);
    }
  }
  keep_counts<X>(counts, x.count(), amax_out, statistics);
}

}  // namespace

void quantize_blocks(Stream /*stream*/, ConstView x, const QuantizedTensor& out, float* amax,
                     QuantizeStatistics* statistics, const CastOptions& options) {
  with_float_type(x.dtype, [&](auto x_tag) {
    with_code_type(out.format().dtype, [&](auto code_tag) {
      cast_as<typename decltype(x_tag)::Type, typename decltype(code_tag)::Type>(
          x, out, amax, statistics, options.step);
    });
  });
}

void dequantize_blocks(Stream /*stream*/, const Encoded& x, View y) {
  const BlockScales scales = block_scales(x);
  const View& stored = x.codes;
  const bool is_fp4 = stored.dtype == DType::e2m1;
  const float tensor_scale = is_fp4 && x.tensor_scale != nullptr ? *x.tensor_scale : 1.0F;
  const float* const row_scales = is_fp4 ? x.row_scales : nullptr;
  const int64_t rows = stored.shape.rows();
  const int64_t columns = stored.shape.back();
  const auto pitch = static_cast<int64_t>(bytes_of_rows(stored.dtype, 1, columns));
  CodeTypes::with(stored.dtype, [&]<typename Code>(TypeTag<Code>) {
    with_float_type(y.dtype, [&](auto y_tag) {
      auto* data = y.as<typename decltype(y_tag)::Type>();
#pragma omp parallel for schedule(static) if (rows * columns >= kParallelElements)
      for (int64_t row = 0; row < rows; ++row) {
        const Code* const codes = stored.as<Code>() + row * pitch;
        const float above = row_scales == nullptr ? tensor_scale : row_scales[row];
        for (int64_t block = 0; block < scales.grid.columns; ++block) {
          const float factor = scales.inverse(row / scales.grid.height, block) * above;
          const int64_t end = minimum(columns, (block + 1) * scales.grid.width);
          for (int64_t i = block * scales.grid.width; i < end; ++i) {
            Code code = {};
            if constexpr (std::is_same_v<Code, e2m1>) {
              code.bits = static_cast<uint8_t>(codes[i / 2].bits >> i % 2 * 4 & 0xFU);
            } else {
              code = codes[i];
            }
            store_from_float(data + row * columns + i, decode(code) * factor);
          }
        }
      }
    });
  });
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
