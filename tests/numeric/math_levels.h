#pragma once
// The elementary functions over an array, compiled once per CPU level (math_levels.cpp).

#include <cstddef>

namespace fp8train {

struct MathKernels {
  using Function = void (*)(const float* x, float* y, size_t count);
  static constexpr int kCount = 9;
  Function function[kCount];
};

}  // namespace fp8train
