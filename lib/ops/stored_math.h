#pragma once
// How one element of a StoredTensor is read and written, for host and device.

#include <cstdint>

#include "base/host_device.h"
#include "numeric/bits.h"
#include "numeric/convert.h"
#include "numeric/scale.h"
#include "tensor/stored_tensor.h"

namespace fp8train::ops {

/// The scale of a tensor whose largest new magnitude is `amax`.
FP8TRAIN_HD float stored_scale(float amax, float old_scale, float format_max, bool pow2) {
  return is_finite(amax) ? current_scale(amax, format_max, 0.0F, pow2, kMaxF32) : old_scale;
}

FP8TRAIN_HD float stored_value(float code) {
  return code;
}
template <typename Code>
FP8TRAIN_HD float stored_value(Code code) {
  return decode(code);
}

/// Saturating for the narrow formats.
template <typename Code>
FP8TRAIN_HD Code encode_stored(float value) {
  return encode<Code>(value);
}
template <>
FP8TRAIN_HD float encode_stored<float>(float value) {
  return value;
}

FP8TRAIN_HD bool is_zero_code(float code) {
  return code == 0.0F;
}
FP8TRAIN_HD bool is_zero_code(bf16 code) {
  return (code.bits & 0x7FFFU) == 0;
}
FP8TRAIN_HD bool is_zero_code(f16 code) {
  return (code.bits & 0x7FFFU) == 0;
}
FP8TRAIN_HD bool is_zero_code(e4m3 code) {
  return (code.bits & 0x7FU) == 0;
}
FP8TRAIN_HD bool is_zero_code(e5m2 code) {
  return (code.bits & 0x7FU) == 0;
}

/// The smallest code above zero for a zero that must not be one. An fp32 value is never floored.
FP8TRAIN_HD float floor_code(float code, bool /*floored*/) {
  return code;
}
template <typename Code>
FP8TRAIN_HD Code floor_code(Code code, bool floored) {
  using Bits = decltype(code.bits);
  return Code{is_zero_code(code) && floored ? static_cast<Bits>(1) : code.bits};
}

}  // namespace fp8train::ops
