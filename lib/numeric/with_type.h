#pragma once
// Calls a template for an element type that is known at run time, in host code of kernels. Inlined,
// since files that are compiled for several x86-64 levels include it.

#include "numeric/dtype.h"

namespace fp8train {

template <typename T>
struct TypeTag {
  using Type = T;
};

/// body(TypeTag<T>) with T the one of `Types` that `dtype` names. Throws InternalError where none
/// does.
template <typename... Types, typename Body>
inline __attribute__((always_inline)) void with_type(DType dtype, Body body) {
  const bool found = ((dtype == dtype_of<Types>() && (body(TypeTag<Types>{}), true)) || ...);
  if (!found) {
    throw_no_kernel_for(dtype);
  }
}

/// Throws InternalError unless `dtype` names one of `Types`: before a kernel that chooses its types
/// when it runs.
template <typename... Types>
void check_type(DType dtype) {
  with_type<Types...>(dtype, [](auto /*tag*/) {});
}

template <typename Body>
inline __attribute__((always_inline)) void with_float_type(DType dtype, Body body) {
  with_type<float, bf16, f16>(dtype, body);
}

template <typename Body>
inline __attribute__((always_inline)) void with_fp8_type(DType dtype, Body body) {
  with_type<e4m3, e5m2>(dtype, body);
}

/// The types of a byte that a cast with scales writes.
template <typename Body>
inline __attribute__((always_inline)) void with_code_type(DType dtype, Body body) {
  with_type<e4m3, e5m2, int8_t>(dtype, body);
}

/// The types that a stored tensor may have.
template <typename Body>
inline __attribute__((always_inline)) void with_stored_type(DType dtype, Body body) {
  with_type<float, bf16, f16, e4m3, e5m2>(dtype, body);
}

}  // namespace fp8train
