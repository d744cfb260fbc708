#pragma once
// How one element of a StoredTensor is read and written, for host and device.

#include <math.h>

#include <cstdint>

#include "base/host_device.h"
#include "numeric/bits.h"
#include "numeric/convert.h"
#include "numeric/math.h"
#include "numeric/rounding.h"
#include "numeric/scale.h"
#include "tensor/stored_tensor.h"

namespace fp8train::ops {

/// The scale of a tensor whose largest new magnitude is `amax`.
FP8TRAIN_HD float stored_scale(float amax, float old_scale, float format_max, bool pow2) {
  return is_finite(amax) ? current_scale(amax, format_max, 0.0F, pow2, kMaxF32) : old_scale;
}

/// The halves of an fp32 value (TransformerEngine, common/multi_tensor/adam.cu): its upper 16 bits,
/// rounded to nearest with ties away from zero, and its lower 16 bits. Their highest bit says
/// whether the upper half was rounded up, so that nothing is lost.
struct MasterHalves {
  uint16_t upper, lower;
};
/// Splits an fp32 value into a rounded bf16 and the lower bits that restore it.
FP8TRAIN_HD MasterHalves split_master(float value) {
  const uint32_t all = bits_of(value);
  const bool is_nan = (all & 0x7FFFFFFFU) > 0x7F800000U;
  const uint32_t bits = is_nan ? 0x7FC00000U : all;  // a carry could end in a zero
  return {static_cast<uint16_t>((bits >> 16) + (bits >> 15 & 1U)), static_cast<uint16_t>(bits)};
}
/// Restores the fp32 value of split_master().
FP8TRAIN_HD float join_master(uint16_t upper, uint16_t lower) {
  const uint32_t cut = (static_cast<uint32_t>(upper) - (lower >> 15)) & 0xFFFFU;
  return float_of(cut << 16 | lower);
}

/// The random bits of one tensor in one step.
struct RoundingDraw {
  uint64_t seed = 0, step = 0, tensor = 0;
  int64_t first = 0;
  ElementMap elements = {};

  /// Returns the random bits of the elements 4 * block .. 4 * block + 3 of a call. Those of a part
  /// are four elements of the whole, too (ElementMap::by_fours).
  FP8TRAIN_HD PhiloxBlock block(int64_t block) const {
    const int64_t element = elements.element(first + 4 * block);
    return stochastic_block(seed, step, tensor, static_cast<uint64_t>(element) / 4);
  }
};

/// Returns the random bits of one role of a tensor in one step.
FP8TRAIN_HD RoundingDraw rounding_draw(const RoundingStream& stream, RoundingRole role,
                                       int64_t step) {
  return {stream.seed, static_cast<uint64_t>(step), stream.tensor * 4 + static_cast<uint64_t>(role),
          stream.first, stream.elements};
}

/// Returns the code or, for a zero that is `floored`, the smallest code above zero. An fp32 value
/// stays as it is.
FP8TRAIN_HD float floor_code(float code, bool /*floored*/) {
  return code;
}
template <typename Code>
FP8TRAIN_HD Code floor_code(Code code, bool floored) {
  using Bits = decltype(code.bits);
  return Code{is_zero_code(code) && floored ? static_cast<Bits>(1) : code.bits};
}

// Dynamic range expansion (COAT, arXiv 2410.19313): a group whose magnitudes span less than e4m3
// can hold is raised to a power that spreads them over all codes.

/// x^exponent for x >= 0; x itself for 1.
FP8TRAIN_HD float positive_power(float x, float exponent) {
  const float power = exp2_f32(log2_f32(x) * exponent);
  return exponent == 1.0F ? x : power;
}

/// The expansion of a group with magnitudes smallest .. amax (`smallest`: of those that are not
/// zero). With R = amax / smallest and B = 448^2 / 2: exponent = floor(16 log2(B) / log2(R)) / 16,
/// at most 16, and 1 where R is; below 1 the groups that span more than e4m3 are drawn together.
/// center = sqrt(amax) * sqrt(smallest); scale = 448 / (amax / center)^exponent. Without a finite
/// amax the old one stays. Formula: coat/optimizer/kernels/fp8_adamw_expand_cuda_kernel.cu, which
/// has no upper limit, takes zeros for the smallest in some lanes, and adds 1e-30 to both ends.
FP8TRAIN_HD ScaleExpansion stored_expansion(float amax, float smallest, const ScaleExpansion& old) {
  constexpr float kSixteenLog2Bound = 265.835358F;
  constexpr float kLargest = 448.0F;
  if (!is_finite(amax)) {
    return old;
  }
  if (amax == 0.0F) {
    return {};
  }
  // Beyond 2^126 the quotient could overflow. The exponent is 2 / 16 there, so never 0.
  const float lowest = amax * power_of_two(-126);
  const float low = smallest < lowest ? lowest : smallest;
  const float range = log2_f32(amax / low);
  const float wanted = kSixteenLog2Bound / range;
  const float limited = wanted < 256.0F ? wanted : 256.0F;  // infinity where the range is 0
  const float steps = static_cast<float>(static_cast<int32_t>(limited));
  const float exponent = range == 0.0F ? 1.0F : steps * 0.0625F;
  const float center = sqrtf(amax) * sqrtf(low);
  return {kLargest / positive_power(amax / center, exponent), exponent, center};
}

/// Returns the expanded value, which is then encoded.
FP8TRAIN_HD float expand(float value, const ScaleExpansion& expansion) {
  const uint32_t sign = bits_of(value) & 0x80000000U;
  const float magnitude = float_of(bits_of(value) & 0x7FFFFFFFU);
  const float power = positive_power(magnitude / expansion.center, expansion.exponent);
  return float_of(bits_of(power * expansion.scale) | sign);
}

/// The value of a decoded code; `inverse_exponent` = 1 / exponent. What a rounding carries beyond
/// fp32 becomes its largest number.
FP8TRAIN_HD float contract(float code, const ScaleExpansion& expansion, float inverse_exponent) {
  const uint32_t sign = bits_of(code) & 0x80000000U;
  const float magnitude = float_of(bits_of(code) & 0x7FFFFFFFU);
  const float power = positive_power(magnitude / expansion.scale, inverse_exponent);
  const float value = power * expansion.center;
  return float_of(bits_of(value > kMaxF32 ? kMaxF32 : value) | sign);
}

}  // namespace fp8train::ops
