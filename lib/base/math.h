#pragma once
// Whole multiples of integers, host and device. Nothing is negative and no divisor is zero.

#include <cstdint>
#include <type_traits>

#include "base/host_device.h"

namespace fp8train {

/// Returns how many parts of `size` hold `count`.
template <typename T>
constexpr FP8TRAIN_HD T ceil_div(T count, std::type_identity_t<T> size) {
  return (count + size - 1) / size;
}

/// Returns the smallest multiple of `multiple` that is at least `count`.
template <typename T>
constexpr FP8TRAIN_HD T round_up(T count, std::type_identity_t<T> multiple) {
  return ceil_div(count, multiple) * multiple;
}

/// Returns the divisor of `count` that is nearest to `wanted`; of two, the smaller.
constexpr int64_t nearest_divisor(int64_t count, int64_t wanted) {
  for (int64_t distance = 0;; ++distance) {
    for (const int64_t other : {wanted - distance, wanted + distance}) {
      if (other >= 1 && count % other == 0) {
        return other;
      }
    }
  }
}

}  // namespace fp8train
