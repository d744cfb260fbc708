#pragma once
// The lists behind is_wire_format(): all kernels of packets and all messages about wires take
// theirs from here.

#include <cstdint>
#include <string>

#include "numeric/with_type.h"

namespace fp8train::ops {

template <typename... Types>
struct WireTypes {
  static constexpr DType kTypes[] = {dtype_of<Types>()...};
  static constexpr bool has(DType dtype) { return ((dtype == dtype_of<Types>()) || ...); }

  /// body(TypeTag<T>) for the type that `dtype` names.
  template <typename Body>
  static inline __attribute__((always_inline)) void with(DType dtype, Body body) {
    with_type<Types...>(dtype, body);
  }
};

/// Elements that cross without scales, and codes that cross with one for each group. A further type
/// is a name here.
using PlainWireTypes = WireTypes<float, bf16>;
using WireCodes = WireTypes<e4m3, e5m2, int8_t>;

/// Elements that share a scale: a power of two, and as many elements for each lane of a warp.
inline constexpr int kWireGroups[] = {128, 256};

/// "fp32, bf16, e4m3 or e5m2 with a scale for the tensor, or ...": what gradients may cross in, by
/// packets and by sums under a shared scale (shared_wire.h), for messages.
std::string gradient_wires_text();

}  // namespace fp8train::ops
