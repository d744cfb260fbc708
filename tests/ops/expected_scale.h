#pragma once
// The scale of a block by its definition, in double precision.

#include <cmath>
#include <cstdint>

#include "tensor/tensor_format.h"

namespace fp8train::test {

/// What a block's scale has to be.
struct Expected {
  float scale, scale_inv;
  uint8_t exponent;
};

/// ScaleType::e8m0_floor, or e8m0_even, which rounds amax to the mantissa of a code first.
inline Expected expected_scale_down(const TensorFormat& format, float amax) {
  const bool is_e4m3 = format.dtype == DType::e4m3;
  int exponent = 0;
  const double mantissa = std::frexp(static_cast<double>(amax), &exponent);  // in [0.5, 1)
  const bool rises = mantissa >= 1.0 - std::ldexp(1.0, is_e4m3 ? -5 : -4);
  exponent += format.scale_type == ScaleType::e8m0_even && rises ? 1 : 0;
  if (!std::isfinite(amax) || exponent > 128) {
    return {NAN, NAN, 255};
  }
  const int power = exponent - 1 - (is_e4m3 ? 8 : 15);
  const int code = amax == 0.0F || power < -127 ? 0 : power + 127;
  return {static_cast<float>(std::ldexp(1.0, 127 - code)),
          static_cast<float>(std::ldexp(1.0, code - 127)), static_cast<uint8_t>(code)};
}

inline Expected expected_scale(const TensorFormat& format, DType input, float amax) {
  if (format.scale_type == ScaleType::e8m0_floor || format.scale_type == ScaleType::e8m0_even) {
    return expected_scale_down(format, amax);
  }
  const double maximum = format.dtype == DType::e4m3 ? 448.0
                         : format.dtype == DType::i8 ? 127.0
                                                     : 57344.0;
  if (format.scale_type == ScaleType::e8m0) {
    int exponent = 0;
    const double ratio = static_cast<float>(static_cast<double>(amax) / maximum);
    const double mantissa = std::frexp(ratio, &exponent);
    const int power = mantissa == 0.5 ? exponent - 1 : exponent;
    int code = std::isinf(ratio) ? 254 : power + 127;
    code = ratio == 0.0 || code < 0 ? 0 : code > 254 ? 254 : code;
    if (std::isnan(ratio)) {
      return {NAN, NAN, 255};
    }
    return {static_cast<float>(std::ldexp(1.0, 127 - code)),
            static_cast<float>(std::ldexp(1.0, code - 127)), static_cast<uint8_t>(code)};
  }
  if (amax == 0.0F || !std::isfinite(amax)) {
    return {1.0F, 1.0F, 0};
  }
  const double quotient = maximum / static_cast<double>(amax);
  const double limit = input == DType::f16    ? 65504.0
                       : input == DType::bf16 ? std::ldexp(255.0, 120)
                                              : 3.4028234663852886e38;
  float scale =
      quotient > 3.4028235677973366e38 ? static_cast<float>(limit) : static_cast<float>(quotient);
  if (format.scale_type == ScaleType::pow2) {
    int exponent = 0;
    std::frexp(scale, &exponent);
    scale = static_cast<float>(std::ldexp(1.0, exponent - 1));
  }
  return {scale, static_cast<float>(1.0 / static_cast<double>(scale)), 0};
}

}  // namespace fp8train::test
