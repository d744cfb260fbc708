#pragma once
// Pieces of a cast to FP8 or INT8, on arrays that stay in a thread's L1 cache between them. Only
// for files compiled by fp8train_isa_sources.

#include "numeric/scale.h"
#include "ops/cast/quantize.h"
#include "ops/cast/scaling_math.h"
#include "ops/support/kernel_support_cpu.h"
#include "ops/support/transpose_cpu.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {

/// The parts of quantize() and dequantize() that have blocks, of codes of a byte and of e2m1.
decltype(ops::quantize) quantize_blocks, quantize_fp4;
decltype(ops::dequantize) dequantize_blocks;

constexpr int64_t kTransposedTile = 64;  ///< rows and columns of a tile that is transposed

// The bit pattern of |x| in x's own width: ordered like the value, and every NaN is above infinity.
FP8TRAIN_HD uint32_t magnitude_bits(const float* x) {
  return bits_of(*x) & 0x7FFFFFFFU;
}
template <typename X>
FP8TRAIN_HD uint16_t magnitude_bits(const X* x) {
  return static_cast<uint16_t>(x->bits & 0x7FFFU);
}
FP8TRAIN_HD float value_of_magnitude(uint32_t bits, TypeTag<float> /*tag*/) {
  return float_of(bits);
}
template <typename X>
FP8TRAIN_HD float value_of_magnitude(uint32_t bits, TypeTag<X> /*tag*/) {
  return decode(X{static_cast<uint16_t>(bits)});
}

/// The counts of the pieces of a cast. Maxima and counts are integers, so that no order of threads
/// changes them.
struct CastCounts {
  uint32_t largest = 0;  ///< magnitude, as bits
  uint64_t saturated = 0;
  uint64_t underflow = 0;

  FP8TRAIN_HD void raise(uint32_t magnitude) {
    largest = magnitude > largest ? magnitude : largest;
  }
};

/// body(piece, counts) for all pieces of a cast of `count` elements, over the threads.
template <typename Body>
FP8TRAIN_HD CastCounts count_pieces(int64_t pieces, [[maybe_unused]] int64_t count, Body body) {
  uint32_t largest = 0;
  uint64_t saturated = 0;
  uint64_t underflow = 0;
#pragma omp parallel for schedule(static) reduction(max : largest) \
    reduction(+ : saturated, underflow) if (count >= kParallelElements)
  for (int64_t piece = 0; piece < pieces; ++piece) {
    CastCounts counts;
    body(piece, counts);
    largest = counts.largest > largest ? counts.largest : largest;
    saturated += counts.saturated;
    underflow += counts.underflow;
  }
  return {largest, saturated, underflow};
}

/// Stores what pieces of a cast of `count` elements of X have seen. A null pointer: not wanted.
template <typename X>
FP8TRAIN_HD void keep_counts(const CastCounts& counts, int64_t count, float* amax,
                             QuantizeStatistics* statistics) {
  if (amax != nullptr) {
    *amax = max_magnitude(value_of_magnitude(counts.largest, TypeTag<X>{}), *amax);
  }
  if (statistics != nullptr) {
    *statistics = {static_cast<uint64_t>(count), counts.saturated, counts.underflow};
  }
}

/// The largest |x|, as magnitude_bits.
template <typename X>
FP8TRAIN_HD uint32_t largest_magnitude(const X* __restrict x, int64_t count) {
  decltype(magnitude_bits(x)) largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto bits = magnitude_bits(x + i);
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

// The scale of all elements, or of each.
FP8TRAIN_HD float scale_at(float scale, int64_t /*i*/) {
  return scale;
}
FP8TRAIN_HD float scale_at(const float* scales, int64_t i) {
  return scales[i];
}

/// codes = cast(x * scale), saturating; `scale` as for scale_at.
template <typename X, typename Scale, typename Code>
FP8TRAIN_HD void encode_chunk(const X* __restrict x, Scale scale, Code* __restrict codes,
                              int64_t count) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    codes[i] = encode<Code>(load_as_float(x + i) * scale_at(scale, i));
  }
}

/// Counts what saturated and what became zero when x was cast to `codes`.
template <typename X, typename Scale, typename Code>
FP8TRAIN_HD void count_chunk(const X* __restrict x, Scale scale, const Code* __restrict codes,
                             int64_t count, CastCounts& counts) {
  constexpr float kMax = saturation_threshold(dtype_of<Code>());
  uint32_t beyond = 0;
  uint32_t vanished = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float scaled = load_as_float(x + i) * scale_at(scale, i);
    beyond += scaled > kMax || scaled < -kMax ? 1U : 0U;
    vanished += magnitude_bits(x + i) != 0 && is_zero_code(codes[i]) ? 1U : 0U;
  }
  counts.saturated += beyond;
  counts.underflow += vanished;
}

/// The transpose of a tile of codes whose rows are kTransposedTile apart; rows of `to` are `stride`
/// apart.
template <typename Code>
FP8TRAIN_HD void transpose_tile(const Code* codes, int64_t height, int64_t width, Code* to,
                                int64_t stride) {
  static_assert(sizeof(Code) == 1);
  transpose(reinterpret_cast<const uint8_t*>(codes), kTransposedTile, height, width,
            reinterpret_cast<uint8_t*>(to), stride);
}

/// A cast of x [rows, columns] whose codes are stored as [columns, rows].
template <typename X, typename Code>
struct TransposedCast {
  const X* x;
  int64_t rows, columns;
  Code* codes;
  bool finds_amax;  ///< of the elements that are cast
  bool counted;     ///< what saturates and what becomes zero
};

/// A part of a matrix, at most kTransposedTile columns wide.
struct Strip {
  int64_t row, height, column, width;
};

/// Casts a strip with one scale, or with one for each of its columns: a tile at a time into a
/// buffer, and transposed from there.
template <typename X, typename Code, typename Scale>
FP8TRAIN_HD void cast_strip(const TransposedCast<X, Code>& cast, const Strip& strip, Scale scale,
                            CastCounts& counts) {
  const int64_t end = strip.row + strip.height;
  for (int64_t row = strip.row; row < end; row += kTransposedTile) {
    const int64_t height = minimum(kTransposedTile, end - row);
    Code codes[kTransposedTile * kTransposedTile];
    for (int64_t r = 0; r < height; ++r) {
      const X* from = cast.x + (row + r) * cast.columns + strip.column;
      if (cast.finds_amax) {
        counts.raise(largest_magnitude(from, strip.width));
      }
      encode_chunk(from, scale, codes + r * kTransposedTile, strip.width);
      if (cast.counted) {
        count_chunk(from, scale, codes + r * kTransposedTile, strip.width, counts);
      }
    }
    transpose_tile(codes, height, strip.width, cast.codes + strip.column * cast.rows + row,
                   cast.rows);
  }
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
