#pragma once
// Whole multiples of integers, host and device. Nothing is negative and no divisor is zero.

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

}  // namespace fp8train
