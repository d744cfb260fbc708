#pragma once
// FP8 and FP16 by brute force: values from the definition of the format in double, codes by search
// for the nearest value.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "numeric/dtype.h"

namespace fp8train::test {

struct FormatDefinition {
  int mantissa_bits;
  int bias;
  uint32_t max_code;  // of the largest finite value
};

template <typename T>
constexpr FormatDefinition definition();
template <>
constexpr FormatDefinition definition<e4m3>() {
  return {3, 7, 0x7E};
}
template <>
constexpr FormatDefinition definition<e5m2>() {
  return {2, 15, 0x7B};
}
template <>
constexpr FormatDefinition definition<f16>() {
  return {10, 15, 0x7BFF};
}

/// Value of a non-negative code as if every exponent were an ordinary one.
inline double value_of(const FormatDefinition& format, uint32_t code) {
  const int exponent = static_cast<int>(code >> format.mantissa_bits);
  const double fraction =
      std::ldexp(code & ((1U << format.mantissa_bits) - 1), -format.mantissa_bits);
  return exponent == 0 ? std::ldexp(fraction, 1 - format.bias)
                       : std::ldexp(1.0 + fraction, exponent - format.bias);
}

/// Values of codes 0 .. max_code + 1; the last one is where an unbounded exponent would go on.
template <typename T>
std::vector<double> magnitudes() {
  const FormatDefinition format = definition<T>();
  std::vector<double> values;
  for (uint32_t code = 0; code <= format.max_code + 1; ++code) {
    values.push_back(value_of(format, code));
  }
  return values;
}

/// Nearest code of a magnitude, ties to the even code; max_code + 1 stands for overflow and NaN.
inline uint32_t nearest_code(const std::vector<double>& values, double magnitude) {
  if (!(magnitude < values.back())) {
    return static_cast<uint32_t>(values.size() - 1);
  }
  const auto above = std::upper_bound(values.begin(), values.end(), magnitude);
  const auto high = static_cast<uint32_t>(above - values.begin());
  const uint32_t low = high - 1;
  const double to_low = magnitude - values[low];
  const double to_high = values[high] - magnitude;
  if (to_low == to_high) {
    return low % 2 == 0 ? low : high;
  }
  return to_low < to_high ? low : high;
}

}  // namespace fp8train::test
