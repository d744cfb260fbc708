#pragma once
// Computes a scale from an amax. Convention: code = encode(value * scale), and the reciprocal is
// stored next to the scale for reading. Divisions are IEEE (CUDA code is compiled with
// -prec-div=true). Host and device.

#include <cstdint>

#include "base/host_device.h"
#include "numeric/bits.h"
#include "numeric/convert.h"
#include "numeric/dtype.h"

namespace fp8train {

constexpr float kMaxF32 = 3.40282347e+38F;

/// 2^exponent; the exponent is brought into -126..127.
FP8TRAIN_HD float power_of_two(int exponent) {
  const int above = exponent < -126 ? -126 : exponent;
  const int limited = above > 127 ? 127 : above;
  return float_of(static_cast<uint32_t>(limited + 127) << 23);
}

/// The power of two at or below a positive normal scale: its mantissa cleared. Infinity and NaN
/// become infinity.
FP8TRAIN_HD float pow2_floor(float scale) {
  return float_of(bits_of(scale) & 0xFF800000U);
}

FP8TRAIN_HD float reciprocal(float scale) {
  return 1.0F / scale;
}

/// Delayed scaling: format_max * 2^-margin / amax, or `old_scale` while amax is 0, infinite or NaN;
/// the largest fp32 number where the quotient overflows. (TransformerEngine,
/// common/recipe/delayed_scaling.cu.)
FP8TRAIN_HD float delayed_scale(float amax, float old_scale, float format_max, int margin) {
  const float quotient = format_max * power_of_two(-margin) / amax;
  const float limited = quotient > kMaxF32 ? kMaxF32 : quotient;
  return amax > 0.0F && is_finite(amax) ? limited : old_scale;
}

/// Current and block scaling: format_max / max(amax, epsilon); 1 where that amax is 0, infinite or
/// NaN; `value_for_inf` where the quotient overflows (per tensor kMaxF32, per block the largest
/// finite value of the input's type); with `pow2` rounded down to a power of two afterwards.
/// (TransformerEngine, common/recipe/recipe_common.cuh compute_scale_from_amax.)
FP8TRAIN_HD float current_scale(float amax, float format_max, float epsilon, bool pow2,
                                float value_for_inf) {
  const float floored = amax < epsilon ? epsilon : amax;
  const float quotient = format_max / floored;
  const float limited = quotient > kMaxF32 ? value_for_inf : quotient;
  const float rounded = pow2 ? pow2_floor(limited) : limited;
  return floored > 0.0F && is_finite(floored) ? rounded : 1.0F;
}

/// Smooth-SwiGLU: 1 / amax rounded up to a power of two, so that amax * scale is in [1, 2); 1 where
/// amax is 0, infinite or NaN. Its exponent is limited to -60..60: values of 16-bit types times or
/// divided by it are fp32 numbers. (Fishman et al., 2409.12517, whose scales are not powers of
/// two.)
FP8TRAIN_HD float smoothing_scale(float amax) {
  const int exponent = static_cast<int>(bits_of(amax) >> 23 & 0xFFU) - 127;
  const int above = exponent < -60 ? -60 : exponent;
  const int limited = above > 60 ? 60 : above;
  return amax > 0.0F && is_finite(amax) ? power_of_two(-limited) : 1.0F;
}

/// MXFP8: the scale that *reads* a block, amax / format_max rounded up to a power of two, so that
/// no element saturates; codes are encode(value * decode_reciprocal(scale)). (TransformerEngine
/// MXFP8BlockScaling; OCP's own rule rounds down.)
FP8TRAIN_HD e8m0 e8m0_scale(float amax, float format_max) {
  return encode_e8m0_round_up(amax / format_max);
}

/// The same, rounded down as the OCP MX specification has it (section 6.3; FLOOR of torchao,
/// prototype/mx_formats/config.py, ScaleCalculationMode): 2^(floor(log2 amax) - floor(log2
/// format_max)), so that the largest elements may saturate; infinity and NaN give 0xFF. `carry` is
/// added to the bits of amax first: with half of a code's last bit (e8m0_carry()) the block's
/// largest element is rounded before (EVEN).
FP8TRAIN_HD e8m0 e8m0_scale_down(float amax, float format_max, uint32_t carry) {
  constexpr uint32_t kExponent = 0x7F800000U;
  const uint32_t bits = bits_of(amax);
  const uint32_t power = bits >= kExponent ? kExponent : (bits + carry) & kExponent;
  const float quotient = float_of(power) / float_of(bits_of(format_max) & kExponent);
  return power == kExponent ? e8m0{0xFF} : encode_e8m0_round_up(quotient);
}
/// Returns half of the last bit of a number with `mantissa` bits, as bits of fp32.
constexpr uint32_t e8m0_carry(uint32_t mantissa) {
  return 1U << (22 - mantissa);
}

/// NVFP4: the scale of a tensor, or of a row, above those of its blocks, so that the block with the
/// largest magnitude gets the scale `largest`: 448 * 6 / amax, at most the largest fp32 number; 1
/// where amax is 0 or infinite; NaN stays. Read back as amax / (448 * 6), which is not its
/// reciprocal where it is limited. (TransformerEngine, common/cast/nvfp4/core_nvfp4.cuh
/// compute_global_encode_scaling_factor_FP4; pytorch/custom_recipes/reference_nvfp4.py.)
FP8TRAIN_HD float two_level_scale(float amax, float largest = kMaxE4M3) {
  const float quotient = largest * kMaxE2M1 / amax;
  const float limited = quotient > kMaxF32 ? kMaxF32 : quotient;
  return amax == 0.0F || limited == 0.0F ? 1.0F : limited;
}
FP8TRAIN_HD float two_level_scale_inv(float amax, float largest = kMaxE4M3) {
  return amax / (largest * kMaxE2M1);
}
/// Returns the scale that reads a block of such a tensor, under the tensor's scale: amax / 6 times
/// that scale, in E4M3; a NaN amax gives NaN.
FP8TRAIN_HD e4m3 two_level_block_scale(float amax, float tensor_scale) {
  return encode<e4m3>(amax * (tensor_scale * (1.0F / kMaxE2M1)));
}
/// Returns the factor of the values of a block: 1 / (scale / tensor_scale), at most the largest
/// fp32 number, which is that of a block of zeros.
FP8TRAIN_HD float two_level_factor(e4m3 block_scale, float tensor_scale) {
  const float quotient = 1.0F / (decode(block_scale) * (1.0F / tensor_scale));
  return quotient > kMaxF32 ? kMaxF32 : quotient;
}

/// 4over6: a block has two candidates, in which its amax becomes 6 or, with a scale 1.5 times as
/// large, 4. That with the smaller sum of errors is taken, and the first one where they are equal.
/// (Four Over Six, 2512.02010; TransformerEngine, common/cast/nvfp4/quantize_4over6_nvfp4.cuh.)
FP8TRAIN_HD e4m3 four_over_six_block_scale(float amax, float tensor_scale, bool to_four) {
  const float base = amax / kMaxE2M1 * tensor_scale;
  return encode<e4m3>(to_four ? base * 1.5F : base);
}
/// Returns the error of a value cast with `factor` and read with `scale` and the amax of the
/// tensor, or its square. `largest`: as for two_level_scale().
FP8TRAIN_HD float four_over_six_error(float value, float factor, e4m3 scale, float tensor_amax,
                                      float largest, bool squared) {
  const float code = decode(encode<e2m1>(value * factor));
  const float error = code * decode(scale) * tensor_amax / (kMaxE2M1 * largest) - value;
  return squared ? error * error : error < 0.0F ? -error : error;
}

}  // namespace fp8train
