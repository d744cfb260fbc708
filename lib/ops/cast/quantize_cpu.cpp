// Compiled once per CPU level. Codes are those of numeric/convert.h's encode; the loops are
// written so that the compiler vectorizes them.

#include "base/math.h"
#include "ops/cast/quantize_support_cpu.h"
#include "ops/dispatch/cpu_operations.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {
namespace {

/// Casts an array by chunks. A chunk is read from memory once: its further passes find it in L1.
template <typename X, typename Code>
FP8TRAIN_HD void quantize_array(const X* x, Code* codes, int64_t count, float scale,
                                float* amax_out, QuantizeStatistics* statistics) {
  const CastCounts all =
      count_pieces(ceil_div(count, kChunk), count, [&](int64_t chunk, CastCounts& counts) {
        const int64_t begin = chunk * kChunk;
        const int64_t length = minimum(kChunk, count - begin);
        if (amax_out != nullptr) {
          counts.raise(largest_magnitude(x + begin, length));
        }
        encode_chunk(x + begin, scale, codes + begin, length);
        if (statistics != nullptr) {
          count_chunk(x + begin, scale, codes + begin, length, counts);
        }
      });
  keep_counts<X>(all, count, amax_out, statistics);
}

/// to [columns, rows] = from [rows, columns], transposed.
void transpose_matrix(const uint8_t* from, int64_t rows, int64_t columns, uint8_t* to) {
  constexpr int64_t kTile = 64;
  const int64_t column_tiles = ceil_div(columns, kTile);
#pragma omp parallel for schedule(static) if (rows * columns >= kParallelElements)
  for (int64_t tile = 0; tile < column_tiles; ++tile) {
    const int64_t column_end = minimum(columns, (tile + 1) * kTile);
    for (int64_t row = 0; row < rows; row += kTile) {
      const int64_t column = tile * kTile;
      transpose(from + row * columns + column, columns, minimum(kTile, rows - row),
                column_end - column, to + column * rows + row, rows);
    }
  }
}

/// Only the transpose is stored.
template <typename X, typename Code>
FP8TRAIN_HD void quantize_transposed(const TransposedCast<X, Code>& cast, float scale,
                                     float* amax_out, QuantizeStatistics* statistics) {
  const auto cast_columns = [&](int64_t tile, CastCounts& counts) {
    const int64_t column = tile * kTransposedTile;
    const int64_t width = minimum(kTransposedTile, cast.columns - column);
    cast_strip(cast, {0, cast.rows, column, width}, scale, counts);
  };
  const int64_t count = cast.rows * cast.columns;
  keep_counts<X>(count_pieces(ceil_div(cast.columns, kTransposedTile), count, cast_columns), count,
                 amax_out, statistics);
}

/// Slots begin .. begin + count, at most kLanes: a row of the history is read for all of them.
FP8TRAIN_HD void update_slots(const DelayedScalingState& state, const DelayedScaling& rule,
                              int64_t begin, int64_t count) {
  float window[kLanes];
  bool pushed[kLanes];
  for (int64_t i = 0; i < count; ++i) {
    pushed[i] = push_amax(state, begin + i);
    window[i] = newest_amax(state, begin + i);
  }
  if (rule.algorithm == AmaxAlgorithm::max) {
    for (int64_t row = 0; row < state.history_length; ++row) {
      const float* values = state.history + row * state.slots + begin;
      for (int64_t i = 0; i < count; ++i) {
        window[i] = values[i] > window[i] ? values[i] : window[i];
      }
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    if (pushed[i]) {
      rescale_slot(state, begin + i, window[i], rule.margin);
    }
  }
}

}  // namespace

void amax(Stream /*stream*/, ConstView x, float* result, bool combine) {
  with_float_type(x.dtype, [&](auto tag) {
    const auto* data = x.as<typename decltype(tag)::Type>();
    const int64_t count = x.count();
    const uint32_t largest =
        count_pieces(ceil_div(count, kChunk), count, [&](int64_t chunk, CastCounts& counts) {
          const int64_t begin = chunk * kChunk;
          counts.raise(largest_magnitude(data + begin, minimum(kChunk, count - begin)));
        }).largest;
    *result = max_magnitude(value_of_magnitude(largest, tag), combine ? *result : 0.0F);
  });
}

void transpose_codes(Stream /*stream*/, ConstView x, View y) {
  transpose_matrix(x.as<uint8_t>(), x.shape.rows(), x.shape.back(), y.as<uint8_t>());
}

void quantize(Stream stream, ConstView x, const QuantizedTensor& out, float* amax_out,
              QuantizeStatistics* statistics, const CastOptions& options) {
  if (out.format().block != per::tensor) {
    const auto cast = out.format().dtype == DType::e2m1 ? quantize_fp4 : quantize_blocks;
    return cast(stream, x, out, amax_out, statistics, options);
  }
  const Encoded& either = out.either();
  const float scale = *either.cast_scales;
  if (either.tensor_scale != nullptr) {
    *either.tensor_scale = reciprocal(scale);
  }
  const bool only_transposed = out.rowwise.codes.empty() && !out.columnwise.codes.empty();
  with_float_type(x.dtype, [&]<typename X>(TypeTag<X>) {
    with_code_type(either.format.dtype, [&]<typename Code>(TypeTag<Code>) {
      if (only_transposed) {
        const Shape& shape = out.columnwise.codes.shape;
        const TransposedCast<X, Code> cast = {.x = x.as<X>(),
                                              .rows = shape.back(),
                                              .columns = shape.rows(),
                                              .codes = out.columnwise.codes.as<Code>(),
                                              .finds_amax = true,
                                              .counted = statistics != nullptr};
        quantize_transposed(cast, scale, amax_out, statistics);
      } else {
        quantize_array(x.as<X>(), out.rowwise.codes.as<Code>(), x.count(), scale, amax_out,
                       statistics);
      }
    });
  });
  if (!only_transposed && !out.columnwise.codes.empty()) {
    transpose_matrix(out.rowwise.codes.as<uint8_t>(), out.rowwise.codes.shape.rows(),
                     out.rowwise.codes.shape.back(), out.columnwise.codes.as<uint8_t>());
  }
}

void dequantize(Stream stream, const Encoded& x, View y) {
  if (x.format.block != per::tensor) {
    return dequantize_blocks(stream, x, y);
  }
  const float scale = *x.tensor_scale;
  with_code_type(x.codes.dtype, [&](auto code_tag) {
    with_float_type(y.dtype, [&](auto y_tag) {
      const auto* codes = x.codes.as<typename decltype(code_tag)::Type>();
      auto* data = y.as<typename decltype(y_tag)::Type>();
      for_each_chunk(y.count(), [=](int64_t begin, int64_t end) {
#pragma GCC ivdep
        for (int64_t i = begin; i < end; ++i) {
          store_from_float(data + i, decode(codes[i]) * scale);
        }
      });
    });
  });
}

void compute_current_scale(Stream /*stream*/, const float* amax, const TensorFormat& format,
                           float* scale, float* scale_inv) {
  *scale = current_scale(*amax, format_max(format.dtype), format.amax_epsilon,
                         format.scale_type == ScaleType::pow2, kMaxF32);
  *scale_inv = reciprocal(*scale);
}

void quantize_current(Stream stream, ConstView x, const float* amax, float* scale_inv,
                      const QuantizedTensor& out, QuantizeStatistics* statistics) {
  FP8TRAIN_ISA_NS::compute_current_scale(stream, amax, out.format(), out.either().cast_scales,
                                         scale_inv);
  FP8TRAIN_ISA_NS::quantize(stream, x, out, nullptr, statistics, {});
}

void propagate_non_finite(Stream /*stream*/, ConstView amax, double* accumulator) {
  const float* values = amax.as<float>();
  for (int64_t i = 0; i < amax.count(); ++i) {
    if (!is_finite(values[i])) {
      *accumulator = __builtin_nan("");
    }
  }
}

void update_delayed_scaling(Stream /*stream*/, const DelayedScalingState& state,
                            const DelayedScaling& rule) {
  const int64_t blocks = ceil_div(state.slots, kLanes);
  const int64_t work = state.slots * state.history_length;
#pragma omp parallel for schedule(static) if (work >= kParallelElements)
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t begin = block * kLanes;
    update_slots(state, rule, begin, minimum(kLanes, state.slots - begin));
  }
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
