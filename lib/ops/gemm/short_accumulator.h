#pragma once
// Hopper's FP8 products with the tensor core's short accumulator, emulated (DeepSeek-V3, arXiv
// 2412.19437, section 3.5.2): 32 products are aligned to the largest exponent among them, of each
// the highest 14 bits are added and what lies below is cut off; the sum of them goes into the
// accumulator with 14 bits too. Further details of the hardware are not published: the emulation
// shows the size of the error, not its bits.

#include <cstdint>

namespace fp8train::ops::cpu {

constexpr int64_t kShortAccumulatorDepth = 32;  ///< products that one instruction adds
constexpr int kShortAccumulatorBits = 14;

/// `sum` and `count` (1 to 32) products a[i] * b[i * b_stride]. Values are FP8 numbers in fp32,
/// whose products are exact. Infinity and NaN come through.
float short_sum(const float* a, const float* b, int64_t b_stride, int64_t count, float sum);

}  // namespace fp8train::ops::cpu
