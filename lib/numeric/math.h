#pragma once
// fp32 exp, log and the activations made of them. Branch-free, so that a loop over them
// vectorizes, and without a fused multiply-add, so that the bits are the same at every x86 level
// and on CUDA (-ffp-contract=off, -fmad=false).
//
// Method: Cody and Waite argument reduction, then a polynomial fitted by tests/golden/fit_math.py.
// Largest errors measured against double libm, over every 11th fp32 number: exp 0.98 ulp, log 0.81,
// sigmoid 2.36, exp2 0.98, log2 1.17 (tests/numeric/math_test.cpp sweeps again).
// SiLU 3.1 ulp; GELU 2.3 ulp above zero, below it an absolute error of 5e-8 (the exponent magnifies
// the rounding of its argument). Derivatives: 2.2e-7 absolute.

#include <cstdint>

#include "base/host_device.h"
#include "numeric/bits.h"

namespace fp8train {

namespace detail {

// ln 2 in two parts: the first has 9 significant bits, so that its product with an exponent is
// exact.
constexpr float kLn2High = 0.693359375F;
constexpr float kLn2Low = -2.12194442e-4F;

FP8TRAIN_HD float clamp(float x, float low, float high) {
  const float above = x < low ? low : x;  // NaN passes both
  return above > high ? high : above;
}

/// 2^n for n in -126..127.
FP8TRAIN_HD float exp2_of(int32_t n) {
  return float_of(static_cast<uint32_t>(n + 127) << 23);
}

constexpr float kRounder = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer

/// e^r for |r| <= ln 2 / 2.
FP8TRAIN_HD float exp_reduced(float r) {
  const float c =
      (((1.38207339e-3F * r + 8.36867746e-3F) * r + 4.16682661e-2F) * r + 1.66665211e-1F) * r +
      4.9999994e-1F;
  return 1.0F + (r + r * r * c);
}

/// p * 2^n.
FP8TRAIN_HD float times_exp2(float p, int32_t n) {
  // NaN leaves n without meaning: keep it in range, p is NaN anyway.
  const int32_t bounded = n < -152 ? -152 : (n > 130 ? 130 : n);
  const int32_t half = bounded >> 1;
  return p * exp2_of(half) * exp2_of(bounded - half);
}

/// x = 2^exponent * (1 + f), 1 + f in [sqrt(1/2), sqrt(2)), for x > 0 and finite.
struct Logarithm {
  float exponent, f;
};
FP8TRAIN_HD Logarithm split_logarithm(float x) {
  constexpr uint32_t kSqrtHalf = 0x3F3504F3U;
  const bool subnormal = bits_of(x) < 0x00800000U;
  const uint32_t bits = bits_of(subnormal ? x * 8388608.0F : x);
  const uint32_t offset = bits - kSqrtHalf;  // exponent of x / sqrt(1/2)
  const int32_t exponent = (static_cast<int32_t>(offset) >> 23) - (subnormal ? 23 : 0);
  return {static_cast<float>(exponent), float_of((offset & 0x007FFFFFU) + kSqrtHalf) - 1.0F};
}

/// c(f) of log(1 + f) = f - f^2 / 2 + f^3 c(f).
FP8TRAIN_HD float log_series(float f) {
  const float low =
      ((6.74926937e-2F * f - 1.16700985e-1F) * f + 1.18835486e-1F) * f - 1.24062337e-1F;
  const float middle = ((low * f + 1.42203584e-1F) * f - 1.66679889e-1F) * f + 2.00020716e-1F;
  return (middle * f - 2.50000089e-1F) * f + 3.33333135e-1F;
}

/// A logarithm's value: `finite` where x is above zero and finite.
FP8TRAIN_HD float logarithm_or_special(float x, float finite) {
  const uint32_t magnitude = bits_of(x) & 0x7FFFFFFFU;
  const float negative = magnitude == 0 ? -float_of(0x7F800000U) : float_of(0x7FC00000U);
  const float positive = bits_of(x) >= 0x7F800000U ? x : finite;
  const float above_zero = bits_of(x) > 0x80000000U || magnitude == 0 ? negative : positive;
  return magnitude > 0x7F800000U ? x : above_zero;
}

}  // namespace detail

/// e^x. Exactly 1 at 0, 0 below -104, infinity above 88.72, subnormal results rounded correctly;
/// NaN stays.
FP8TRAIN_HD float exp_f32(float x) {
  constexpr float kLog2E = 1.44269502F;
  const bool vanishes = x < -104.0F;
  // A masked score of -inf must not pay for a subnormal multiplication, hence 0 here and a
  // selection at the end.
  const float limited = vanishes ? 0.0F : (x > 89.0F ? 89.0F : x);
  const float shifted = limited * kLog2E + detail::kRounder;
  const int32_t n = static_cast<int32_t>(bits_of(shifted) - bits_of(detail::kRounder));
  const float n_float = shifted - detail::kRounder;
  const float r = (limited - n_float * detail::kLn2High) - n_float * detail::kLn2Low;
  const float result = detail::times_exp2(detail::exp_reduced(r), n);
  return vanishes ? 0.0F : result;
}

/// 2^x. Exact at integers, 0 below -150, infinity from 128 on; NaN stays.
FP8TRAIN_HD float exp2_f32(float x) {
  constexpr float kLn2 = 0.693147182F;
  constexpr float kLn2Rest = -1.90465421e-9F;
  const bool vanishes = x < -150.0F;
  const float limited = vanishes ? 0.0F : (x > 129.0F ? 129.0F : x);
  const float shifted = limited + detail::kRounder;
  const int32_t n = static_cast<int32_t>(bits_of(shifted) - bits_of(detail::kRounder));
  const float f = limited - (shifted - detail::kRounder);
  const float result = detail::times_exp2(detail::exp_reduced(f * kLn2 + f * kLn2Rest), n);
  return vanishes ? 0.0F : result;
}

/// Natural logarithm. -infinity at 0, NaN below, infinity stays; subnormal arguments are exact
/// inputs.
FP8TRAIN_HD float log_f32(float x) {
  const detail::Logarithm split = detail::split_logarithm(x);
  const float f = split.f;
  const float e = split.exponent;
  const float square = f * f;
  const float tail = square * f * detail::log_series(f) + e * detail::kLn2Low - 0.5F * square;
  const float finite = (f + tail) + e * detail::kLn2High;
  return detail::logarithm_or_special(x, finite);
}

/// Logarithm to base 2, exact at powers of two; otherwise as log_f32.
FP8TRAIN_HD float log2_f32(float x) {
  constexpr float kLog2EHigh = 1.44140625F;  // 9 significant bits
  constexpr float kLog2ELow = 1.28879077e-3F;
  const detail::Logarithm split = detail::split_logarithm(x);
  const float f = split.f;
  const float square = f * f;
  const float tail = square * f * detail::log_series(f) - 0.5F * square;
  // f in two parts, so that the product of its larger one is exact.
  const float high = float_of(bits_of(f) & 0xFFFFF000U);
  const float rest = (f - high) + tail;
  const float low = f * kLog2ELow + (rest * kLog2EHigh + tail * kLog2ELow);
  const float finite = split.exponent + (high * kLog2EHigh + low);
  return detail::logarithm_or_special(x, finite);
}

/// 1 / (1 + e^-x), accurate in both tails.
FP8TRAIN_HD float sigmoid_f32(float x) {
  const float z = exp_f32(-float_of(bits_of(x) & 0x7FFFFFFFU));
  const float numerator = (bits_of(x) & 0x80000000U) != 0 ? z : 1.0F;
  return numerator / (1.0F + z);
}

namespace detail {
struct SigmoidPair {
  float of_x;
  float of_minus_x;
};
/// sigmoid(x) and sigmoid(-x) = 1 - sigmoid(x), neither by cancellation, from one exponential.
FP8TRAIN_HD SigmoidPair sigmoid_pair(float x) {
  const float z = exp_f32(-float_of(bits_of(x) & 0x7FFFFFFFU));
  const float large = 1.0F / (1.0F + z);
  const float small = z * large;
  const bool negative = (bits_of(x) & 0x80000000U) != 0;
  return {negative ? small : large, negative ? large : small};
}
}  // namespace detail

/// x * sigmoid(x); -0 at -infinity.
FP8TRAIN_HD float silu(float x) {
  const float limited = x < -128.0F ? -128.0F : x;
  return limited * sigmoid_f32(limited);
}

/// d silu / dx = sigmoid(x) * (1 + x * sigmoid(-x)).
FP8TRAIN_HD float silu_derivative(float x) {
  const float limited = detail::clamp(x, -128.0F, 128.0F);
  const detail::SigmoidPair s = detail::sigmoid_pair(limited);
  return s.of_x * (1.0F + limited * s.of_minus_x);
}

namespace detail {
constexpr float kGeluSlope = 1.59576912F;  // 2 * sqrt(2 / pi)
constexpr float kGeluCubic = 0.044715F;
}  // namespace detail

/// GELU in its tanh form, 0.5 * x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * x^3))), computed as x *
/// sigmoid(2 * ...), which is equal and does not cancel for negative x. -0 at -infinity.
FP8TRAIN_HD float gelu_tanh(float x) {
  const float limited = x < -32.0F ? -32.0F : x;
  const float inner = detail::clamp(limited, -32.0F, 32.0F);
  const float u = detail::kGeluSlope * (inner + detail::kGeluCubic * (inner * inner * inner));
  return limited * sigmoid_f32(u);
}

/// d gelu_tanh / dx = s + x * s * (1 - s) * u', with s = sigmoid(u), u' = 2 sqrt(2/pi) * (1 + 3 *
/// 0.044715 * x^2).
FP8TRAIN_HD float gelu_tanh_derivative(float x) {
  const float limited = detail::clamp(x, -32.0F, 32.0F);
  const float square = limited * limited;
  const float u = detail::kGeluSlope * (limited + detail::kGeluCubic * (square * limited));
  const float slope = detail::kGeluSlope * (1.0F + 3.0F * detail::kGeluCubic * square);
  const detail::SigmoidPair s = detail::sigmoid_pair(u);
  return s.of_x + limited * s.of_x * s.of_minus_x * slope;
}

}  // namespace fp8train
