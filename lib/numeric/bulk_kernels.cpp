// Compiled once per CPU level (cmake/isa.cmake). Plain loops over numeric/convert.h, which the
// compiler vectorizes.

#include "numeric/bulk_kernels.h"

#include <type_traits>

#include "numeric/convert.h"

namespace fp8train::FP8TRAIN_ISA_NS {
namespace {

template <typename From, typename To>
void convert_scaled(const From* __restrict from, float scale, To* __restrict to, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if constexpr (std::is_same_v<To, float>) {
      to[i] = decode(from[i]) * scale;
    } else {
      to[i] = encode<To>(load_as_float(from + i) * scale);
    }
  }
}

template <typename From, typename To>
void convert(const From* __restrict from, To* __restrict to, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if constexpr (std::is_same_v<To, float>) {
      to[i] = decode(from[i]);
    } else {
      to[i] = widen(from[i]);
    }
  }
}

template <typename From, typename To>
constexpr ScaledConversion<From, To> kernel_of(ScaledConversion<From, To> /*entry*/) {
  return {convert_scaled<From, To>};
}
template <typename From, typename To>
constexpr Conversion<From, To> kernel_of(Conversion<From, To> /*entry*/) {
  return {convert<From, To>};
}

template <typename... Conversions>
constexpr ConversionTable<Conversions...> table_of(ConversionTable<Conversions...> /*empty*/) {
  return {kernel_of(Conversions{})...};
}

constexpr BulkKernels kTable = table_of(BulkKernels{});

}  // namespace

const BulkKernels& bulk_kernels() {
  return kTable;
}

}  // namespace fp8train::FP8TRAIN_ISA_NS
