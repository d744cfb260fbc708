#pragma once
// The table of bulk conversions that each x86-64 level fills (numeric/bulk_kernels.cpp): one
// function for each pair of types that is listed here. Callers use numeric/bulk.h.

#include <cstddef>
#include <cstdint>

#include "numeric/dtype.h"

namespace fp8train {

/// to[i] = encode(from[i] * scale), or decode(from[i]) * scale for a To of float.
template <typename From, typename To>
struct ScaledConversion {
  void (*run)(const From* from, float scale, To* to, size_t count);
};

/// to[i] = from[i], exactly.
template <typename From, typename To>
struct Conversion {
  void (*run)(const From* from, To* to, size_t count);
};

template <typename... Conversions>
struct ConversionTable : Conversions... {};

using BulkKernels = ConversionTable<
    ScaledConversion<float, bf16>, ScaledConversion<float, f16>, ScaledConversion<float, e4m3>,
    ScaledConversion<float, e5m2>, ScaledConversion<bf16, e4m3>, ScaledConversion<bf16, e5m2>,
    ScaledConversion<bf16, float>, ScaledConversion<f16, float>, ScaledConversion<e4m3, float>,
    ScaledConversion<e5m2, float>, Conversion<bf16, float>, Conversion<f16, float>,
    Conversion<e4m3, float>, Conversion<e5m2, float>, Conversion<int8_t, float>,
    Conversion<e4m3, bf16>, Conversion<e5m2, bf16>, Conversion<int8_t, bf16>>;

}  // namespace fp8train
