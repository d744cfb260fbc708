#pragma once
// Stochastic rounding: a value between two codes becomes the upper one with a probability equal to
// its distance from the lower one, so that the mean over the random bits is the value itself. Host
// and device.
//
// The random bits of an element are a pure function of (seed, step, tensor, element index) and
// therefore the same on any device, thread count or sharding: Philox with key philox_key(seed,
// purpose, tensor), counter (step, index / 4), word index % 4.

#include <cstdint>

#include "base/host_device.h"
#include "base/philox.h"
#include "numeric/bits.h"
#include "numeric/convert.h"
#include "numeric/dtype.h"

namespace fp8train {

constexpr uint64_t kStochasticRoundingPurpose = 0x53522D31ULL;

/// Random bits of the four elements 4 * block .. 4 * block + 3; `index` counts over the whole,
/// unsharded tensor.
FP8TRAIN_HD PhiloxBlock stochastic_block(uint64_t seed, uint64_t step, uint64_t tensor,
                                         uint64_t block) {
  return philox(philox_key(seed, kStochasticRoundingPurpose, tensor), step, block);
}

/// Random bits of one element. A loop over consecutive elements draws stochastic_block once per
/// four of them instead.
FP8TRAIN_HD uint32_t stochastic_bits(uint64_t seed, uint64_t step, uint64_t tensor,
                                     uint64_t index) {
  const PhiloxBlock block = stochastic_block(seed, step, tensor, index / 4);
  const uint32_t low = (index & 1U) != 0 ? block.word[1] : block.word[0];
  const uint32_t high = (index & 1U) != 0 ? block.word[3] : block.word[2];
  return (index & 2U) != 0 ? high : low;
}

/// One of the two codes around `value` (the code itself where it is exact). `random_bits` is
/// uniform over 32 bits. Unbiased exactly for normal results and for every fraction that is a
/// multiple of 2^-32 of the smallest subnormal; what lies below that is dropped. f16, e4m3, e5m2,
/// e2m1 saturate and treat NaN as encode does.
template <typename T>
FP8TRAIN_HD T encode_stochastic(float value, uint32_t random_bits) {
  using Layout = FormatLayout<T>;
  constexpr uint32_t kDropped = 23 - Layout::kMantissaBits;
  constexpr uint32_t kMinNormal = (128 - Layout::kBias) << 23;
  constexpr uint32_t kUnitsPerOne = (127 + Layout::kBias + Layout::kMantissaBits - 1) << 23;
  const uint32_t bits = bits_of(value);
  const uint32_t magnitude = bits & ~detail::kSignMask;

  const uint32_t normal = ((magnitude + (random_bits >> (32 - kDropped))) >> kDropped) -
                          ((127 - Layout::kBias) << Layout::kMantissaBits);

  // In units of the smallest subnormal: a whole part and a 32-bit fraction, both exact.
  const float small = float_of(magnitude < kMinNormal ? magnitude : 0U) * float_of(kUnitsPerOne);
  const int32_t whole = static_cast<int32_t>(small);
  const float fraction = small - static_cast<float>(whole);
  const uint32_t threshold = static_cast<uint32_t>(fraction * 4294967296.0F);
  const uint32_t subnormal = static_cast<uint32_t>(whole) + (random_bits < threshold ? 1U : 0U);

  const uint32_t rounded = magnitude < kMinNormal ? subnormal : normal;
  const uint32_t limited = rounded < Layout::kMaxCode ? rounded : Layout::kMaxCode;
  const uint32_t number = limited | ((bits & detail::kSignMask) >> Layout::kSignShift);
  const uint32_t code = magnitude > detail::kInfBits ? Layout::kNanCode : number;
  return T{static_cast<typename Layout::Code>(code)};
}
/// fp32 has nothing to round.
template <>
FP8TRAIN_HD float encode_stochastic<float>(float value, uint32_t /*random_bits*/) {
  return value;
}

/// bf16: a finite value never becomes infinite (beyond the largest bf16 it becomes that one);
/// infinity stays.
template <>
FP8TRAIN_HD bf16 encode_stochastic<bf16>(float value, uint32_t random_bits) {
  const uint32_t bits = bits_of(value);
  const uint32_t magnitude = bits & ~detail::kSignMask;
  const uint32_t rounded = (magnitude + (random_bits >> 16)) >> 16;
  const uint32_t limited = rounded < 0x7F7FU ? rounded : 0x7F7FU;
  const uint32_t finite_or_inf = magnitude == detail::kInfBits ? 0x7F80U : limited;
  const uint32_t number = finite_or_inf | ((bits & detail::kSignMask) >> 16);
  return bf16{static_cast<uint16_t>(magnitude > detail::kInfBits ? 0x7FFFU : number)};
}

/// int8: -127..127, NaN becomes 0, as encode does.
template <>
FP8TRAIN_HD int8_t encode_stochastic<int8_t>(float value, uint32_t random_bits) {
  const uint32_t bits = bits_of(value);
  const uint32_t magnitude = bits & ~detail::kSignMask;
  const float size = magnitude > detail::kInfBits ? 0.0F : float_of(magnitude);
  const float limited = size < 127.0F ? size : 127.0F;
  const int32_t whole = static_cast<int32_t>(limited);
  const float fraction = limited - static_cast<float>(whole);
  const uint32_t threshold = static_cast<uint32_t>(fraction * 4294967296.0F);
  const int32_t number = whole + (random_bits < threshold ? 1 : 0);
  return static_cast<int8_t>((bits & detail::kSignMask) != 0 ? -number : number);
}

}  // namespace fp8train
