#pragma once
// Hopper's FP8 products with the tensor core's short accumulator, emulated (DeepSeek-V3, arXiv
// 2412.19437, section 3.5.2): 32 products are aligned to the largest exponent among them, of each
// the highest 14 bits are added and what lies below is cut off; the sum of them goes into the
// accumulator with 14 bits too. Further details of the hardware are not published: the emulation
// shows the size of the error, not its bits. Only for files compiled by fp8train_isa_sources.

#include <cstdint>

#include "base/math.h"
#include "ops/support/kernel_support_cpu.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {

constexpr int64_t kShortAccumulatorDepth = 32;  ///< products that one instruction adds
constexpr int kShortAccumulatorBits = 14;
constexpr int64_t kShortAccumulatorColumns = 32;  ///< sums that are made side by side

FP8TRAIN_HD float larger(float a, float b) {
  return a < b ? b : a;
}

/// One over the unit of the lowest of 14 bits where `largest`, normal and finite, has the highest:
/// 2^(13 - exponent).
FP8TRAIN_HD float units_per_value(float largest) {
  constexpr uint32_t kExponent = 0x7F800000;
  constexpr uint32_t kTwo = 254u << 23u;  // what the exponents of x and 1 / x add up to
  const uint32_t exponent = __builtin_bit_cast(uint32_t, largest) & kExponent;
  return __builtin_bit_cast(float, kTwo - exponent + ((kShortAccumulatorBits - 1u) << 23u));
}

/// `sum` of two terms of 14 bits. A shift to the right that fills with the sign rounds down. All
/// values are whole units: sums of them are exact.
FP8TRAIN_HD float short_add(float sum, float other) {
  const float plain = sum + other;
  const float largest = larger(__builtin_fabsf(sum), __builtin_fabsf(other));
  const float units = units_per_value(largest);
  const float aligned =
      (__builtin_floorf(sum * units) + __builtin_floorf(other * units)) * (1.0F / units);
  return largest == 0.0F || plain - plain != 0.0F ? plain : aligned;
}

/// sums[c] of `count` (1 to 32) products a[i] * b[i * stride + c] and sums[c], for `columns` (1 to
/// 32) sums; all 32 are written. Values are FP8 numbers in fp32, whose products are exact. Infinity
/// and NaN come through.
FP8TRAIN_HD void add_short_products(const float* a, const float* b, int64_t stride, int64_t count,
                                    int64_t columns, float* sums) {
  constexpr int64_t kColumns = kShortAccumulatorColumns;
  alignas(64) float terms[kShortAccumulatorDepth * kColumns];
  alignas(64) float largest[kColumns] = {};
  alignas(64) float plain[kColumns] = {};
  alignas(64) float units[kColumns] = {};
  for (int64_t i = 0; i < count; ++i) {
    float* term = terms + i * kColumns;
    for (int64_t c = columns; c < kColumns; ++c) {
      term[c] = 0.0F;
    }
    for (int64_t c = 0; c < columns; ++c) {
      term[c] = a[i] * b[i * stride + c];
    }
    for (int64_t c = 0; c < kColumns; ++c) {
      largest[c] = larger(largest[c], __builtin_fabsf(term[c]));
      plain[c] += term[c];
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t c = 0; c < kColumns; ++c) {
      units[c] += __builtin_floorf(terms[i * kColumns + c] * units_per_value(largest[c]));
    }
  }
  for (int64_t c = 0; c < kColumns; ++c) {
    const float aligned = units[c] * (1.0F / units_per_value(largest[c]));
    const bool as_it_is = largest[c] == 0.0F || plain[c] - plain[c] != 0.0F;
    sums[c] = short_add(sums[c], as_it_is ? plain[c] : aligned);
  }
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
