#include "ops/gemm/short_accumulator.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace fp8train::ops::cpu {
namespace {

/// Terms aligned to the largest exponent, 14 bits of each. A shift to the right that fills with the
/// sign rounds down. Whole units: their sum is exact.
double aligned_sum(const double* terms, int64_t count) {
  double largest = 0.0;
  double plain = 0.0;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::fabs(terms[i]));
    plain += terms[i];
  }
  if (largest == 0.0 || !std::isfinite(plain)) {
    return plain;
  }
  const int unit = std::ilogb(largest) - (kShortAccumulatorBits - 1);
  double units = 0.0;
  for (int64_t i = 0; i < count; ++i) {
    units += std::floor(std::ldexp(terms[i], -unit));
  }
  return std::ldexp(units, unit);
}

}  // namespace

float short_sum(const float* a, const float* b, int64_t b_stride, int64_t count, float sum) {
  std::array<double, kShortAccumulatorDepth> products = {};
  for (int64_t i = 0; i < count; ++i) {
    products[static_cast<size_t>(i)] =
        static_cast<double>(a[i]) * static_cast<double>(b[i * b_stride]);
  }
  const std::array<double, 2> both = {sum, aligned_sum(products.data(), count)};
  return static_cast<float>(aligned_sum(both.data(), 2));
}

}  // namespace fp8train::ops::cpu
