#pragma once
// Conversions between fp32 and the storage formats, one value at a time: the definition of every
// code this program writes, on host and device. Branch-free and exact for subnormals. They assume
// the default rounding mode and no flush-to-zero.
//
// NaN loses sign and payload and becomes the canonical NaN of CUDA's conversions, so that a kernel
// that uses the cvt instruction writes the same code: fp16 and bf16 0x7FFF, e4m3 and e5m2 0x7F, and
// e2m1, which has no NaN, its maximum 0x7. Negative zero and the sign of a value that underflows
// are preserved.

#include <cstdint>

#include "base/host_device.h"
#include "numeric/bits.h"
#include "numeric/dtype.h"

namespace fp8train {

/// Where the fields of a small floating-point format lie, and its special codes (without sign).
template <typename T>
struct FormatLayout;
template <>
struct FormatLayout<f16> {
  using Code = uint16_t;
  static constexpr uint32_t kMantissaBits = 10, kBias = 15, kSignShift = 16;
  static constexpr uint32_t kMaxCode = 0x7BFF, kOverflowCode = 0x7C00, kNanCode = 0x7FFF;
};
template <>
struct FormatLayout<e4m3> {
  using Code = uint8_t;
  static constexpr uint32_t kMantissaBits = 3, kBias = 7, kSignShift = 24;
  static constexpr uint32_t kMaxCode = 0x7E, kOverflowCode = 0x7F, kNanCode = 0x7F;
};
template <>
struct FormatLayout<e5m2> {
  using Code = uint8_t;
  static constexpr uint32_t kMantissaBits = 2, kBias = 15, kSignShift = 24;
  static constexpr uint32_t kMaxCode = 0x7B, kOverflowCode = 0x7C, kNanCode = 0x7F;
};
template <>
struct FormatLayout<e2m1> {
  using Code = uint8_t;
  static constexpr uint32_t kMantissaBits = 1, kBias = 1, kSignShift = 28;
  static constexpr uint32_t kMaxCode = 0x7, kOverflowCode = 0x7, kNanCode = 0x7;
};

namespace detail {

constexpr uint32_t kSignMask = 0x80000000U;
constexpr uint32_t kInfBits = 0x7F800000U;

/// Magnitude bits of an fp32 value rounded to nearest even in format T, as if its exponent had no
/// upper end.
template <typename T>
FP8TRAIN_HD uint32_t rounded_magnitude(uint32_t magnitude) {
  using Layout = FormatLayout<T>;
  constexpr uint32_t kDropped = 23 - Layout::kMantissaBits;
  constexpr uint32_t kMinNormal = (128 - Layout::kBias) << 23;
  // One unit in the last place of this constant is the smallest subnormal of T, so that the adder
  // rounds for us.
  constexpr uint32_t kAligner = (151 - Layout::kBias - Layout::kMantissaBits) << 23;
  const uint32_t odd = (magnitude >> kDropped) & 1U;
  const uint32_t carried = magnitude + ((1U << (kDropped - 1)) - 1U) + odd;
  const uint32_t normal = (carried >> kDropped) - ((127 - Layout::kBias) << Layout::kMantissaBits);
  const uint32_t subnormal = bits_of(float_of(magnitude) + float_of(kAligner)) - kAligner;
  return magnitude < kMinNormal ? subnormal : normal;
}

/// Code of `value` with anything above `limit_code` replaced by `limit_code`.
template <typename T>
FP8TRAIN_HD T encode_limited(float value, uint32_t limit_code) {
  using Layout = FormatLayout<T>;
  const uint32_t bits = bits_of(value);
  const uint32_t magnitude = bits & ~kSignMask;
  const uint32_t rounded = rounded_magnitude<T>(magnitude);
  const uint32_t limited = rounded < limit_code ? rounded : limit_code;
  const uint32_t number = limited | ((bits & kSignMask) >> Layout::kSignShift);
  return T{static_cast<typename Layout::Code>(magnitude > kInfBits ? Layout::kNanCode : number)};
}

/// condition ? yes : no by masks: a chain of conditional expressions would become jumps.
FP8TRAIN_HD uint16_t pick(bool condition, uint16_t yes, uint16_t no) {
  const auto mask = static_cast<uint16_t>(-static_cast<int>(condition));
  return static_cast<uint16_t>(no ^ ((yes ^ no) & mask));
}

/// Value of an fp16 code.
FP8TRAIN_HD float decode_f16(uint32_t code) {
  constexpr uint32_t kMinNormal = 113U << 23;
  const uint32_t sign = (code & 0x8000U) << 16;
  const uint32_t magnitude = code & 0x7FFFU;
  const uint32_t normal = (magnitude << 13) + (112U << 23);
  // Give a subnormal the leading one of the smallest normal, then take it away exactly.
  const uint32_t subnormal =
      bits_of(float_of((magnitude << 13) + kMinNormal) - float_of(kMinNormal));
  const uint32_t finite = magnitude < 0x0400U ? subnormal : normal;
  const uint32_t special = magnitude == 0x7C00U ? kInfBits : 0x7FC00000U;
  return float_of((magnitude >= 0x7C00U ? special : finite) | sign);
}

}  // namespace detail

/// Returns the same number in bf16, which holds every value of the FP8 formats, of e2m1 and of
/// int8. It computes in 16-bit integers alone, so that a vector holds twice as many of them; a
/// subnormal finds its leading one by comparison.
FP8TRAIN_HD bf16 widen(e4m3 value) {
  using detail::pick;
  const auto code = static_cast<uint16_t>(value.bits);
  const auto sign = static_cast<uint16_t>((code & 0x80U) << 8);
  const auto magnitude = static_cast<uint16_t>(code & 0x7FU);
  const auto normal = static_cast<uint16_t>((magnitude << 4) + (120U << 7));
  const auto from_4 = static_cast<uint16_t>((magnitude << 5) + (119U << 7));  // 1mm * 2^-9
  const auto from_2 = static_cast<uint16_t>((magnitude << 6) + (118U << 7));  // 01m * 2^-9
  const auto from_0 = static_cast<uint16_t>(magnitude * (118U << 7));         // 00m * 2^-9
  const uint16_t low = pick(magnitude < 2, from_0, from_2);
  const uint16_t subnormal = pick(magnitude < 4, low, from_4);
  const uint16_t finite = pick(magnitude < 8, subnormal, normal);
  return bf16{static_cast<uint16_t>(pick(magnitude == 0x7F, 0x7FC0, finite) | sign)};
}
FP8TRAIN_HD bf16 widen(e5m2 value) {
  using detail::pick;
  const auto code = static_cast<uint16_t>(value.bits);
  const auto sign = static_cast<uint16_t>((code & 0x80U) << 8);
  const auto magnitude = static_cast<uint16_t>(code & 0x7FU);
  const auto normal = static_cast<uint16_t>((magnitude << 5) + (112U << 7));
  const auto from_2 = static_cast<uint16_t>((magnitude << 6) + (111U << 7));  // 1m * 2^-16
  const auto from_0 = static_cast<uint16_t>(magnitude * (111U << 7));         // 0m * 2^-16
  const uint16_t subnormal = pick(magnitude < 2, from_0, from_2);
  const uint16_t finite = pick(magnitude < 4, subnormal, normal);
  const uint16_t special = pick(magnitude == 0x7C, 0x7F80, 0x7FC0);
  return bf16{static_cast<uint16_t>(pick(magnitude < 0x7C, finite, special) | sign)};
}

FP8TRAIN_HD bf16 widen(e2m1 value) {
  using detail::pick;
  const auto sign = static_cast<uint16_t>((value.bits & 0x8U) << 12);
  const auto magnitude = static_cast<uint16_t>(value.bits & 0x7U);
  const auto normal = static_cast<uint16_t>((magnitude << 6) + (126U << 7));
  const auto subnormal = static_cast<uint16_t>(magnitude * (126U << 7));  // m * 2^-1
  return bf16{static_cast<uint16_t>(pick(magnitude < 2, subnormal, normal) | sign)};
}

/// An int8 number has no more than the eight significant bits of bf16.
FP8TRAIN_HD bf16 widen(int8_t value) {
  return bf16{static_cast<uint16_t>(bits_of(static_cast<float>(value)) >> 16)};
}

/// Exact value of a code; every format here is a subset of fp32. A NaN code gives a NaN.
FP8TRAIN_HD float decode(float value) {
  return value;
}
FP8TRAIN_HD float decode(bf16 value) {
  return float_of(static_cast<uint32_t>(value.bits) << 16);
}
FP8TRAIN_HD float decode(f16 value) {
  return detail::decode_f16(value.bits);
}
FP8TRAIN_HD float decode(e4m3 value) {
  return decode(widen(value));
}
FP8TRAIN_HD float decode(e5m2 value) {
  return decode(widen(value));
}
FP8TRAIN_HD float decode(e2m1 value) {
  return decode(widen(value));
}
FP8TRAIN_HD float decode(int8_t value) {
  return static_cast<float>(value);
}
/// 2^(bits - 127), which for bits 0 is an fp32 subnormal; 0xFF is NaN.
FP8TRAIN_HD float decode(e8m0 value) {
  const uint32_t exponent = value.bits;
  const uint32_t normal = exponent == 0xFFU ? 0x7FC00000U : exponent << 23;
  return float_of(exponent == 0 ? 0x00400000U : normal);
}
/// 2^(127 - bits): what multiplies values before they are encoded with this scale. Exact; 0xFF is
/// NaN.
FP8TRAIN_HD float decode_reciprocal(e8m0 value) {
  const uint32_t exponent = value.bits;
  const uint32_t normal = exponent == 0xFFU ? 0x7FC00000U : (254U - exponent) << 23;
  return float_of(exponent == 254U ? 0x00400000U : normal);
}

/// Whether the value of a code is zero, of either sign.
template <typename Code>
FP8TRAIN_HD bool is_zero_code(Code code) {
  return (code.bits & ((1U << (8 * sizeof(Code) - 1)) - 1U)) == 0;
}
bool is_zero_code(e2m1 code) = delete;  // its sign is not the highest bit
FP8TRAIN_HD bool is_zero_code(float value) {
  return value == 0.0F;
}
FP8TRAIN_HD bool is_zero_code(int8_t code) {
  return code == 0;
}

/// Nearest code, ties to even. f16, e4m3, e5m2, e2m1: anything beyond the largest finite value,
/// infinity included, becomes that value (satfinite of PTX cvt). bf16 has the range of fp32 and
/// overflows to infinity. int8: -127..127, NaN becomes 0.
template <typename T>
FP8TRAIN_HD T encode(float value) {
  return detail::encode_limited<T>(value, FormatLayout<T>::kMaxCode);
}
template <>
FP8TRAIN_HD bf16 encode<bf16>(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t magnitude = bits & ~detail::kSignMask;
  const uint32_t rounded = (magnitude + 0x7FFFU + ((magnitude >> 16) & 1U)) >> 16;
  const uint32_t number = rounded | ((bits & detail::kSignMask) >> 16);
  return bf16{static_cast<uint16_t>(magnitude > detail::kInfBits ? 0x7FFFU : number)};
}
template <>
FP8TRAIN_HD float encode<float>(float value) {
  return value;
}
template <>
FP8TRAIN_HD int8_t encode<int8_t>(float value) {
  constexpr float kAligner = 12582912.0F;  // 1.5 * 2^23: its last place is 1
  const float number = is_nan(value) ? 0.0F : value;
  const float above = number < -127.0F ? -127.0F : number;
  const float clamped = above > 127.0F ? 127.0F : above;
  return static_cast<int8_t>(bits_of(clamped + kAligner) - bits_of(kAligner));
}

/// Encodes as encode() does, but what rounds beyond the largest finite value stays visible: e5m2
/// and f16 give infinity, e4m3, which has none, gives NaN (464 still ties to 448). bf16 and e2m1
/// give what encode() gives.
template <typename T>
FP8TRAIN_HD T encode_no_saturate(float value) {
  return detail::encode_limited<T>(value, FormatLayout<T>::kOverflowCode);
}
template <>
FP8TRAIN_HD bf16 encode_no_saturate<bf16>(float value) {
  return encode<bf16>(value);
}

/// Smallest power of two that is at least |value|: 0 and anything up to 2^-127 give 0x00, values
/// above 2^127 and infinity give 0xFE, NaN gives 0xFF. (TransformerEngine,
/// common/util/ptx_arch_spec.cuh float_to_e8m0.)
FP8TRAIN_HD e8m0 encode_e8m0_round_up(float value) {
  const uint32_t magnitude = bits_of(value) & ~detail::kSignMask;
  const uint32_t raised = (magnitude + 0x007FFFFFU) >> 23;
  const uint32_t limited = raised < 0xFEU ? raised : 0xFEU;
  const uint32_t number = magnitude <= 0x00400000U ? 0U : limited;
  return e8m0{static_cast<uint8_t>(magnitude > detail::kInfBits ? 0xFFU : number)};
}

/// Element access for kernels that are templates on their element type: float, bf16 or f16. The
/// store rounds as encode does, except that what is too large for fp16 becomes infinity: dynamic
/// loss scaling has to see an overflow.
template <typename T>
FP8TRAIN_HD float load_as_float(const T* from) {
  return decode(*from);
}
FP8TRAIN_HD void store_from_float(float* to, float value) {
  *to = value;
}
FP8TRAIN_HD void store_from_float(bf16* to, float value) {
  *to = encode<bf16>(value);
}
FP8TRAIN_HD void store_from_float(f16* to, float value) {
  *to = encode_no_saturate<f16>(value);
}

}  // namespace fp8train
