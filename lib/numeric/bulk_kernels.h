#pragma once
// The table of bulk conversions that each CPU level fills (numeric/bulk_kernels.cpp): one
// function for each pair of types that is listed here. Callers use numeric/bulk.h.

#include <cstddef>
#include <cstdint>

#include "numeric/with_type.h"

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

/// Those of all FP8 types, and those of the other types.
template <typename List>
struct BulkTable;
template <typename... Codes>
struct BulkTable<TypeList<Codes...>> {
  using Type =
      ConversionTable<ScaledConversion<float, Codes>..., ScaledConversion<bf16, Codes>...,
                      ScaledConversion<Codes, float>..., Conversion<Codes, float>...,
                      Conversion<Codes, bf16>..., ScaledConversion<float, bf16>,
                      ScaledConversion<float, f16>, ScaledConversion<bf16, float>,
                      ScaledConversion<f16, float>, Conversion<bf16, float>, Conversion<f16, float>,
                      Conversion<int8_t, float>, Conversion<int8_t, bf16>>;
};
using BulkKernels = BulkTable<Fp8Types>::Type;

}  // namespace fp8train
