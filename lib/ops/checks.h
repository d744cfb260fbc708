#pragma once
// Conditions that the dispatching functions of this room check before they call a backend. Only
// shapes and types are looked at, never memory.

#include "base/error.h"
#include "tensor/view.h"

namespace fp8train::ops {

/// fp32, bf16 or fp16: what activations and gradients may be held in.
inline bool is_float_type(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

/// A view of `count` elements of `dtype`.
inline bool holds(const ConstView& view, DType dtype, int64_t count) {
  return view.dtype == dtype && view.count() == count && (count == 0 || !view.empty());
}

/// A scratch view of at least `count` elements of `dtype`.
inline bool has_room(const ConstView& view, DType dtype, int64_t count) {
  return view.dtype == dtype && view.count() >= count && (count == 0 || !view.empty());
}

/// Elements as [rows, back()] with rows matching.
inline bool same_matrix(const ConstView& a, const ConstView& b) {
  return a.count() == b.count() && a.shape.back() == b.shape.back();
}

}  // namespace fp8train::ops
