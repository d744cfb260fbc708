#pragma once
// Pieces of a cast to FP8 or INT8, on arrays that stay in a thread's L1 cache between them. Only
// for files compiled by fp8train_isa_sources.

#include "numeric/scale.h"
#include "ops/cast/quantize.h"
#include "ops/cast/scaling_math.h"
#include "ops/support/kernel_support_cpu.h"
#include "ops/support/transpose_cpu.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {

constexpr int64_t kTurn = 64;  ///< rows and columns of a tile that is transposed

// The bit pattern of |x| in x's own width: ordered like the value, and every NaN is above infinity.
FP8TRAIN_HD uint32_t magnitude_bits(const float* x) {
  return bits_of(*x) & 0x7FFFFFFFU;
}
FP8TRAIN_HD uint16_t magnitude_bits(const bf16* x) {
  return static_cast<uint16_t>(x->bits & 0x7FFFU);
}
FP8TRAIN_HD uint16_t magnitude_bits(const f16* x) {
  return static_cast<uint16_t>(x->bits & 0x7FFFU);
}
FP8TRAIN_HD float value_of_magnitude(uint32_t bits, TypeTag<float> /*tag*/) {
  return float_of(bits);
}
FP8TRAIN_HD float value_of_magnitude(uint32_t bits, TypeTag<bf16> /*tag*/) {
  return decode(bf16{static_cast<uint16_t>(bits)});
}
FP8TRAIN_HD float value_of_magnitude(uint32_t bits, TypeTag<f16> /*tag*/) {
  return decode(f16{static_cast<uint16_t>(bits)});
}

template <typename X>
FP8TRAIN_HD uint32_t largest_magnitude(const X* __restrict x, int64_t count) {
  decltype(magnitude_bits(x)) largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto bits = magnitude_bits(x + i);
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

template <typename X, typename Code>
FP8TRAIN_HD void encode_chunk(const X* __restrict x, float scale, Code* __restrict codes,
                              int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    codes[i] = encode<Code>(load_as_float(x + i) * scale);
  }
}

/// Bits of a code that are all zero where its value is: INT8 never has -128.
template <typename Code>
FP8TRAIN_HD uint32_t code_magnitude(Code code) {
  return code.bits & 0x7FU;
}
FP8TRAIN_HD uint32_t code_magnitude(int8_t code) {
  return static_cast<uint8_t>(code) & 0x7FU;
}

template <typename X, typename Code>
FP8TRAIN_HD void count_chunk(const X* __restrict x, float scale, const Code* __restrict codes,
                             int64_t count, uint64_t& saturated, uint64_t& underflow) {
  constexpr float kMax = saturation_threshold(dtype_of<Code>());
  uint32_t beyond = 0;
  uint32_t vanished = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float scaled = load_as_float(x + i) * scale;
    beyond += scaled > kMax || scaled < -kMax ? 1U : 0U;
    vanished += magnitude_bits(x + i) != 0 && code_magnitude(codes[i]) == 0 ? 1U : 0U;
  }
  saturated += beyond;
  underflow += vanished;
}

/// The same for one row of elements that each have their own scale.
template <typename X, typename Code>
FP8TRAIN_HD void count_row(const X* __restrict x, const float* __restrict scales,
                           const Code* __restrict codes, int64_t count, uint64_t& saturated,
                           uint64_t& underflow) {
  constexpr float kMax = saturation_threshold(dtype_of<Code>());
  uint32_t beyond = 0;
  uint32_t vanished = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float scaled = load_as_float(x + i) * scales[i];
    beyond += scaled > kMax || scaled < -kMax ? 1U : 0U;
    vanished += magnitude_bits(x + i) != 0 && code_magnitude(codes[i]) == 0 ? 1U : 0U;
  }
  saturated += beyond;
  underflow += vanished;
}

/// to[column, row] = from[row, column] of bytes; rows of `from` and of `to` are so far apart.
static __attribute__((noinline)) void transpose_bytes(const uint8_t* from, int64_t from_stride,
                                                      int64_t height, int64_t width, uint8_t* to,
                                                      int64_t to_stride) {
  constexpr int64_t kBlock = 16;
  const int64_t whole_height = height - height % kBlock;
  const int64_t whole_width = width - width % kBlock;
  transpose(from, from_stride, whole_height, whole_width, to, to_stride);
  for (int64_t column = 0; column < width; ++column) {
    for (int64_t row = column < whole_width ? whole_height : 0; row < height; ++row) {
      to[column * to_stride + row] = from[row * from_stride + column];
    }
  }
}

/// The transpose of a tile of codes whose rows are kTurn apart; rows of `to` are `stride` apart.
template <typename Code>
FP8TRAIN_HD void transpose_tile(const Code* codes, int64_t height, int64_t width, Code* to,
                                int64_t stride) {
  static_assert(sizeof(Code) == 1);
  transpose_bytes(reinterpret_cast<const uint8_t*>(codes), kTurn, height, width,
                  reinterpret_cast<uint8_t*>(to), stride);
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
