#pragma once
// The table of bulk conversions that each x86-64 level fills (numeric/bulk_kernels.cpp). Callers
// use numeric/bulk.h.

#include <cstddef>
#include <cstdint>

#include "numeric/dtype.h"

namespace fp8train {

template <typename From, typename To>
using ScaledConversion = void (*)(const From* from, float scale, To* to, size_t count);
template <typename From, typename To>
using Conversion = void (*)(const From* from, To* to, size_t count);

struct BulkKernels {
  ScaledConversion<float, bf16> f32_to_bf16;
  ScaledConversion<float, f16> f32_to_f16;
  ScaledConversion<float, e4m3> f32_to_e4m3;
  ScaledConversion<float, e5m2> f32_to_e5m2;
  ScaledConversion<bf16, e4m3> bf16_to_e4m3;
  ScaledConversion<bf16, e5m2> bf16_to_e5m2;
  ScaledConversion<bf16, float> bf16_to_f32_scaled;
  ScaledConversion<f16, float> f16_to_f32_scaled;
  ScaledConversion<e4m3, float> e4m3_to_f32_scaled;
  ScaledConversion<e5m2, float> e5m2_to_f32_scaled;
  Conversion<bf16, float> bf16_to_f32;
  Conversion<f16, float> f16_to_f32;
  Conversion<e4m3, float> e4m3_to_f32;
  Conversion<e5m2, float> e5m2_to_f32;
  Conversion<e4m3, bf16> e4m3_to_bf16;
  Conversion<e5m2, bf16> e5m2_to_bf16;
  Conversion<int8_t, float> i8_to_f32;
  Conversion<int8_t, bf16> i8_to_bf16;
};

}  // namespace fp8train
