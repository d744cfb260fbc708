#pragma once
// Lists of element types by their use, made from the table of numeric/dtype.h, and functions that
// call a template for an element type known at run time, in host code of kernels. Inlined, since
// files that are compiled for several x86-64 levels include it.

#include <array>
#include <cstddef>
#include <type_traits>

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

template <typename... Types>
struct TypeList {
  static constexpr size_t count = sizeof...(Types);
  static constexpr std::array<DType, count> kTypes = {dtype_of<Types>()...};
  static constexpr bool has(DType type) { return ((type == dtype_of<Types>()) || ...); }

  /// with_type() for the types of the list.
  template <typename Body>
  static inline __attribute__((always_inline)) void with(DType dtype, Body body) {
    with_type<Types...>(dtype, body);
  }

  /// Throws InternalError unless the list has the type: before a kernel that chooses its types when
  /// it runs.
  static void check(DType dtype) {
    with_type<Types...>(dtype, [](auto /*tag*/) {});
  }
};

/// body(TypeTag<T>) for each type of the list.
template <typename... Types, typename Body>
constexpr void for_each_type(TypeList<Types...> /*list*/, Body body) {
  (body(TypeTag<Types>{}), ...);
}

template <typename... A, typename... B>
constexpr TypeList<A..., B...> operator+(TypeList<A...> /*first*/, TypeList<B...> /*second*/) {
  return {};
}

namespace detail {
template <bool (*Belongs)(DType), typename... Types>
constexpr auto types_that(TypeList<Types...> /*all*/) {
  return (TypeList<>{} + ... +
          std::conditional_t<Belongs(dtype_of<Types>()), TypeList<Types>, TypeList<>>{});
}
}  // namespace detail

/// The types that a function of numeric/dtype.h chooses, in the order of the table.
template <bool (*Belongs)(DType)>
using TypesThat = decltype(detail::types_that<Belongs>(AllTypes{}));

using FloatTypes = TypesThat<is_float_type>;
using Fp8Types = TypesThat<is_fp8>;
using CodeTypes = TypesThat<is_code_type>;
using ByteCodes = TypesThat<is_byte_code>;
using RoleTypes = TypesThat<is_role_type>;
using StoredTypes = TypesThat<is_stored_type>;
using PlainWireTypes = TypesThat<is_plain_wire_type>;
using WireCodes = TypesThat<is_wire_code>;

template <typename Body>
inline __attribute__((always_inline)) void with_float_type(DType dtype, Body body) {
  FloatTypes::with(dtype, body);
}

template <typename Body>
inline __attribute__((always_inline)) void with_fp8_type(DType dtype, Body body) {
  Fp8Types::with(dtype, body);
}

/// The types of a byte that a cast with scales writes.
template <typename Body>
inline __attribute__((always_inline)) void with_code_type(DType dtype, Body body) {
  ByteCodes::with(dtype, body);
}

/// The types that a stored tensor may have.
template <typename Body>
inline __attribute__((always_inline)) void with_stored_type(DType dtype, Body body) {
  StoredTypes::with(dtype, body);
}

}  // namespace fp8train
