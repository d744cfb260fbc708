#pragma once
// The bit pattern of a float and back, on host and device.

#include <cstdint>

#include "base/host_device.h"

namespace fp8train {

FP8TRAIN_HD uint32_t bits_of(float value) {
  return __builtin_bit_cast(uint32_t, value);
}
FP8TRAIN_HD float float_of(uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}

FP8TRAIN_HD bool is_nan(float value) {
  return (bits_of(value) & 0x7FFFFFFFU) > 0x7F800000U;
}
FP8TRAIN_HD bool is_finite(float value) {
  return (bits_of(value) & 0x7FFFFFFFU) < 0x7F800000U;
}

}  // namespace fp8train
