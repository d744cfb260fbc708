#pragma once
// Codecs (Codec in tensor/encoded.h): how a group of values becomes codes with a scale, and
// is read again. The loops over stored tensors, saved inputs and packets (ops/storage,
// ops/optimizer, ops/exchange) take the arithmetic of every format from here. Host and device.

#include <math.h>

#include <cstdint>

#include "base/host_device.h"
#include "numeric/bits.h"
#include "numeric/convert.h"
#include "numeric/math.h"
#include "numeric/scale.h"

namespace fp8train {

/// How the codes of a group with an expanded range are read: |value| = center * (code / scale)^(1 /
/// exponent).
struct ScaleExpansion {
  float scale = 1.0F, exponent = 1.0F, center = 1.0F;
};

FP8TRAIN_HD float quiet_nan() {
  return float_of(0x7FC00000U);
}
/// Returns the value, or NaN for one that is not finite.
FP8TRAIN_HD float finite_or_nan(float value) {
  return is_finite(value) ? value : quiet_nan();
}

/// Returns the code or, for a zero that is `floored`, the smallest code above zero. An fp32 value
/// stays as it is.
FP8TRAIN_HD float floor_code(float code, bool /*floored*/) {
  return code;
}
FP8TRAIN_HD int8_t floor_code(int8_t code, bool floored) {
  return code == 0 && floored ? int8_t{1} : code;
}
template <typename Code>
FP8TRAIN_HD Code floor_code(Code code, bool floored) {
  using Bits = decltype(code.bits);
  return Code{is_zero_code(code) && floored ? static_cast<Bits>(1) : code.bits};
}

/// The scale of a tensor or group whose largest new magnitude is `amax`; `old_scale` unless that is
/// finite.
FP8TRAIN_HD float stored_scale(float amax, float old_scale, float format_max, bool pow2) {
  return is_finite(amax) ? current_scale(amax, format_max, 0.0F, pow2, kMaxF32) : old_scale;
}

/// Returns the byte of a power of two: its biased exponent.
FP8TRAIN_HD uint8_t scale_byte(float scale) {
  return static_cast<uint8_t>(bits_of(scale) >> 23);
}
/// Returns the power of two of such a byte.
FP8TRAIN_HD float scale_of_byte(uint8_t byte) {
  return byte == 0xFF ? quiet_nan() : float_of(static_cast<uint32_t>(byte) << 23);
}
/// Writes the scale of a group: fp32, or the byte of a power of two.
FP8TRAIN_HD void write_scale(void* scales, bool as_byte, int64_t group, float scale) {
  if (as_byte) {
    static_cast<uint8_t*>(scales)[group] = scale_byte(scale);
  } else {
    static_cast<float*>(scales)[group] = scale;
  }
}
/// Reads the scale of a group.
FP8TRAIN_HD float read_scale(const void* scales, bool as_byte, int64_t group) {
  return as_byte ? scale_of_byte(static_cast<const uint8_t*>(scales)[group])
                 : static_cast<const float*>(scales)[group];
}

// Codec::divided (COAT, arXiv 2410.19313).

/// The scale of a group that is read with it: amax / 448 in bf16, 1 for zeros; NaN if a value is
/// not finite.
FP8TRAIN_HD bf16 divided_scale(float amax) {
  if (!is_finite(amax)) {
    return bf16{0x7FC0};
  }
  const bf16 scale = encode<bf16>(amax / kMaxE4M3);
  const float value = decode(scale);
  // If the scale vanishes, so do all values; the reciprocal of a subnormal would be infinite.
  return value < 1.17549435e-38F ? bf16{0x3F80} : scale;
}
/// Returns the code of a value of such a group.
FP8TRAIN_HD e4m3 divided_code(float value, bf16 scale) {
  return encode<e4m3>(value / decode(scale));
}
/// Returns the value that is read for `value`.
FP8TRAIN_HD float divided_value(float value, bf16 scale) {
  return decode(divided_code(value, scale)) * decode(scale);
}

// Codec::two_level. Each struct here has the scales of a group of codes and is a format, "e2m1
// group(kGroup) current e4m3", of which all else follows from it: a value is code * block * above.

/// NVFP4.
struct GroupScales {
  static constexpr int kGroup = 128;  ///< elements
  static constexpr int kBlock = 16;   ///< of them share a scale in e4m3

  float above = 1.0F;
  e4m3 blocks[kGroup / kBlock] = {};

  /// The factor that scales of blocks are found with, and `above`, from the largest magnitude.
  static FP8TRAIN_HD float factor_of(float amax) { return two_level_scale(amax); }
  static FP8TRAIN_HD float above_of(float amax) { return two_level_scale_inv(amax); }
};

/// A list of such structs, whose sizes are multiples of that of fp32.
template <typename... All>
struct GroupScalesList;
template <typename First, typename... Others>
struct GroupScalesList<First, Others...> {
  using Head = First;
  using Tail = GroupScalesList<Others...>;
  static constexpr bool kIsLast = sizeof...(Others) == 0;
  static_assert(sizeof(First) % sizeof(float) == 0);

  /// body(Scales{}) with the struct for groups of `group` elements; the last one for others.
  template <typename Body>
  static FP8TRAIN_HD void with(int64_t group, Body body) {
    if constexpr (!kIsLast) {
      if (group != First::kGroup) {
        return Tail::with(group, body);
      }
    }
    body(First{});
  }
  /// to[at] = from[index], or the scales of zeros unless that `exists`, of groups of `group`.
  static FP8TRAIN_HD void copy(int64_t group, const void* from, int64_t index, bool exists,
                               void* to, int64_t at) {
    if constexpr (!kIsLast) {
      if (group != First::kGroup) {
        return Tail::copy(group, from, index, exists, to, at);
      }
    }
    static_cast<First*>(to)[at] = exists ? static_cast<const First*>(from)[index] : First{};
  }
  /// body(Scales{}) for each of them.
  template <typename Body>
  static void for_each(Body body) {
    body(First{});
    (body(Others{}), ...);
  }
};
using AllGroupScales = GroupScalesList<GroupScales>;

/// The scale of a block under that of its group (two_level_scale). It is not 0 where an element is
/// `floored`, since 0 would be all that is read.
FP8TRAIN_HD e4m3 block_scale(float amax, float group_scale, bool floored) {
  const e4m3 scale = two_level_block_scale(amax, group_scale);
  return floor_code(scale, floored);
}
/// Returns the code for a scaled value; `floored` as in floor_code().
FP8TRAIN_HD uint8_t two_level_code(e2m1 code, bool floored) {
  return (code.bits & 7U) == 0 && floored ? uint8_t{1} : code.bits;
}
/// The value of a code; `factor`: of its block. The code 0 is 0 under any scale, so that gradients
/// which are cleared do not remember NaN.
FP8TRAIN_HD float two_level_value(uint8_t code, float factor) {
  return code == 0 ? 0.0F : decode(e2m1{code}) * factor;
}

// Codec::halves.

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

// Codec::expanded, dynamic range expansion (COAT, arXiv 2410.19313): a group whose magnitudes span
// less than e4m3 can hold is raised to a power that spreads them over all codes.

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

}  // namespace fp8train
