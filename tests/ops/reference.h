#pragma once
// Comparison of an operation's result with a reference in double precision.

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "ops/attention/attention.h"
#include "ops/op_test_support.h"

namespace fp8train::test {

inline std::vector<double> doubles(const Array& array) {
  const std::vector<float> values = array.values();
  return {values.begin(), values.end()};
}

/// Heads that start at column `first` of rows of `stride` elements, `capacity` rows per sequence.
inline ops::HeadsView heads_of(Array& array, int64_t first, int64_t stride, int64_t capacity) {
  return {array.as<uint8_t>() + static_cast<size_t>(first) * size_of(array.dtype()), array.dtype(),
          stride, capacity};
}

/// Largest |got - want| / (rounding * |want| + absolute): at most 1 passes. A NaN anywhere gives
/// infinity.
inline double worst_error(const Array& got, const std::vector<double>& want, double rounding,
                          double absolute) {
  double worst = got.count() == static_cast<int64_t>(want.size()) ? 0.0 : INFINITY;
  for (size_t i = 0; i < want.size(); ++i) {
    const double value = got.get(static_cast<int64_t>(i));
    const double error = std::abs(value - want[i]) / (rounding * std::abs(want[i]) + absolute);
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  return worst;
}

}  // namespace fp8train::test
