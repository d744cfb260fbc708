// Compiled once per x86-64 level. Casts with one scale for each block: along rows, along columns
// (the transposed operand) and in squares. Each piece of work is a block or a strip of them, and
// what is counted are integers, so that no number of threads changes a bit.

#include "base/math.h"
#include "ops/cast/quantize_support_cpu.h"
#include "ops/cast/scale_blocks.h"
#include "ops/dispatch/cpu_operations.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {
namespace {

/// One cast of a matrix x [rows, columns].
template <typename X, typename Code>
struct Cast {
  const X* x;
  int64_t rows, columns;
  BlockRule rule;
  bool counts;  ///< what saturates and what becomes zero
  uint64_t saturated, underflow;
  uint32_t largest;  // magnitude of all elements
};

template <typename X>
FP8TRAIN_HD float amax_of(uint32_t magnitude, TypeTag<X> tag) {
  return max_magnitude(value_of_magnitude(magnitude, tag), 0.0F);
}

/// Blocks that lie in one row.
template <typename X, typename Code>
FP8TRAIN_HD void cast_rows(Cast<X, Code>& cast, const BlockScales& scales, Code* codes) {
  const ScaleGrid& grid = scales.grid;
  uint64_t saturated = 0;
  uint64_t underflow = 0;
  uint32_t largest_of_all = 0;
#pragma omp parallel for schedule(static) \
    reduction(+ : saturated, underflow) \
    reduction(max : largest_of_all) if (cast.rows * cast.columns >= kParallelElements)
  for (int64_t row = 0; row < cast.rows; ++row) {
    for (int64_t block = 0; block < grid.columns; ++block) {
      const int64_t begin = row * cast.columns + block * grid.width;
      const int64_t length = minimum(grid.width, cast.columns - block * grid.width);
      const uint32_t largest = largest_magnitude(cast.x + begin, length);
      largest_of_all = largest > largest_of_all ? largest : largest_of_all;
      const float amax = amax_of(largest, TypeTag<X>{});
      scales.keep(row, block, amax, cast.rule);
      const float factor = cast.rule.factor(amax);
      encode_chunk(cast.x + begin, factor, codes + begin, length);
      if (cast.counts) {
        count_chunk(cast.x + begin, factor, codes + begin, length, saturated, underflow);
      }
    }
  }
  cast.saturated = saturated;
  cast.underflow = underflow;
  cast.largest = largest_of_all;
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

/// `height` rows of `width` columns, each column with its own factor, to transposed codes.
template <typename X, typename Code>
FP8TRAIN_HD void cast_strip(const Cast<X, Code>& cast, int64_t row_begin, int64_t height,
                            int64_t column_begin, int64_t width, const float* factors,
                            Code* transposed, uint64_t& saturated, uint64_t& underflow) {
  for (int64_t row = row_begin; row < row_begin + height; row += kTurn) {
    const int64_t tile_height = minimum(kTurn, row_begin + height - row);
    Code codes[kTurn * kTurn];
    for (int64_t r = 0; r < tile_height; ++r) {
      const X* from = cast.x + (row + r) * cast.columns + column_begin;
      for (int64_t column = 0; column < width; ++column) {
        const float scaled = load_as_float(from + column) * factors[column];
        codes[r * kTurn + column] = encode<Code>(scaled);
      }
      if (cast.counts) {
        count_row(from, factors, codes + r * kTurn, width, saturated, underflow);
      }
    }
    transpose_tile(codes, tile_height, width, transposed + column_begin * cast.rows + row,
                   cast.rows);
  }
}

/// Blocks that lie in one column, whose codes go to [columns, rows].
template <typename X, typename Code>
FP8TRAIN_HD void cast_columns(Cast<X, Code>& cast, const BlockScales& scales, Code* transposed) {
  const ScaleGrid& grid = scales.grid;
  const int64_t strips = ceil_div(cast.columns, kTurn);
  uint64_t saturated = 0;
  uint64_t underflow = 0;
  uint32_t largest_of_all = 0;
#pragma omp parallel for schedule(static) collapse(2) \
    reduction(+ : saturated, underflow) \
    reduction(max : largest_of_all) if (cast.rows * cast.columns >= kParallelElements)
  for (int64_t strip = 0; strip < strips; ++strip) {
    for (int64_t block = 0; block < grid.columns; ++block) {
      const int64_t column = strip * kTurn;
      const int64_t width = minimum(kTurn, cast.columns - column);
      const int64_t row = block * grid.width;
      const int64_t height = minimum(grid.width, cast.rows - row);
      uint32_t largest[kTurn];
      float factors[kTurn];
      largest_of_columns(cast.x + row * cast.columns + column, height, width, cast.columns,
                         largest);
      for (int64_t i = 0; i < width; ++i) {
        largest_of_all = largest[i] > largest_of_all ? largest[i] : largest_of_all;
        const float amax = amax_of(largest[i], TypeTag<X>{});
        scales.keep(column + i, block, amax, cast.rule);
        factors[i] = cast.rule.factor(amax);
      }
      cast_strip(cast, row, height, column, width, factors, transposed, saturated, underflow);
    }
  }
  cast.saturated = saturated;
  cast.underflow = underflow;
  cast.largest = largest_of_all;
}

/// Squares of `side` x `side`: one scale for both orientations. Codes and transposed codes may each
/// be null.
template <typename X, typename Code>
FP8TRAIN_HD void cast_squares(Cast<X, Code>& cast, int64_t side, const BlockScales& scales,
                              const BlockScales& scales_transposed, Code* codes, Code* transposed) {
  const int64_t down = ceil_div(cast.rows, side);
  const int64_t across = ceil_div(cast.columns, side);
  uint64_t saturated = 0;
  uint64_t underflow = 0;
  uint32_t largest_of_all = 0;
#pragma omp parallel for schedule(static) collapse(2) \
    reduction(+ : saturated, underflow) \
    reduction(max : largest_of_all) if (cast.rows * cast.columns >= kParallelElements)
  for (int64_t i = 0; i < down; ++i) {
    for (int64_t j = 0; j < across; ++j) {
      const int64_t height = minimum(side, cast.rows - i * side);
      const int64_t width = minimum(side, cast.columns - j * side);
      const int64_t first = i * side * cast.columns + j * side;
      uint32_t largest = 0;
      for (int64_t row = 0; row < height; ++row) {
        const uint32_t here = largest_magnitude(cast.x + first + row * cast.columns, width);
        largest = here > largest ? here : largest;
      }
      largest_of_all = largest > largest_of_all ? largest : largest_of_all;
      const float amax = amax_of(largest, TypeTag<X>{});
      const float factor = cast.rule.factor(amax);
      float factors[kTurn];
      for (float& each : factors) {
        each = factor;
      }
      if (codes != nullptr) {
        scales.keep_block(i, j, side, amax, cast.rule);
        for (int64_t row = 0; row < height; ++row) {
          const int64_t at = first + row * cast.columns;
          encode_chunk(cast.x + at, factor, codes + at, width);
          if (cast.counts) {
            count_chunk(cast.x + at, factor, codes + at, width, saturated, underflow);
          }
        }
      }
      if (transposed != nullptr) {
        scales_transposed.keep_block(j, i, side, amax, cast.rule);
        uint64_t counted[2] = {0, 0};
        for (int64_t column = 0; column < width; column += kTurn) {
          cast_strip(cast, i * side, height, j * side + column, minimum(kTurn, width - column),
                     factors, transposed, counted[0], counted[1]);
        }
        saturated += codes == nullptr ? counted[0] : 0;
        underflow += codes == nullptr ? counted[1] : 0;
      }
    }
  }
  cast.saturated = saturated;
  cast.underflow = underflow;
  cast.largest = largest_of_all;
}

template <typename X, typename Code>
FP8TRAIN_HD void cast_as(ConstView x, const QuantizedTensor& out, float* amax_out,
                         QuantizeStatistics* statistics) {
  Cast<X, Code> cast = {.x = x.as<X>(),
                        .rows = x.shape.rows(),
                        .columns = x.shape.back(),
                        .rule = block_rule(out.format, x.dtype),
                        .counts = statistics != nullptr,
                        .saturated = 0,
                        .underflow = 0,
                        .largest = 0};
  const BlockScales rowwise = block_scales(out.rowwise, out.format, out.layout);
  const BlockScales columnwise = block_scales(out.columnwise, out.format, out.layout);
  Code* codes = out.rowwise.codes.as<Code>();
  Code* transposed = out.columnwise.codes.as<Code>();
  if (out.format.block.is_square()) {
    cast_squares(cast, out.format.block.rows, rowwise, columnwise, codes, transposed);
  } else {
    if (transposed != nullptr) {
      cast_columns(cast, columnwise, transposed);
    }
    if (codes != nullptr) {
      cast_rows(cast, rowwise, codes);
    }
  }
  if (amax_out != nullptr) {
    *amax_out = max_magnitude(amax_of(cast.largest, TypeTag<X>{}), *amax_out);
  }
  if (statistics != nullptr) {
    *statistics = {static_cast<uint64_t>(x.count()), cast.saturated, cast.underflow};
  }
}

}  // namespace

void quantize_blocks(Stream /*stream*/, ConstView x, const QuantizedTensor& out, float* amax,
                     QuantizeStatistics* statistics) {
  with_float_type(x.dtype, [&](auto x_tag) {
    with_code_type(out.format.dtype, [&](auto code_tag) {
      cast_as<typename decltype(x_tag)::Type, typename decltype(code_tag)::Type>(x, out, amax,
                                                                                 statistics);
    });
  });
}

void dequantize_blocks(Stream /*stream*/, const QuantizedTensor& x, View y) {
  const BlockScales scales = block_scales(x.rowwise, x.format, x.layout);
  const View& stored = x.rowwise.codes;
  const int64_t rows = stored.shape.rows();
  const int64_t columns = stored.shape.back();
  with_code_type(stored.dtype, [&](auto code_tag) {
    with_float_type(y.dtype, [&](auto y_tag) {
      const auto* codes = stored.as<typename decltype(code_tag)::Type>();
      auto* data = y.as<typename decltype(y_tag)::Type>();
#pragma omp parallel for schedule(static) if (rows * columns >= kParallelElements)
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t block = 0; block < scales.grid.columns; ++block) {
          const float factor = scales.inverse(row / scales.grid.height, block);
          const int64_t begin = block * scales.grid.width;
          const int64_t end = minimum(columns, begin + scales.grid.width);
          for (int64_t i = row * columns + begin; i < row * columns + end; ++i) {
            store_from_float(data + i, decode(codes[i]) * factor);
          }
        }
      }
    });
  });
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
