#pragma once
// Conditions that the dispatching functions of this module check before they call a backend. Only
// shapes and types are looked at, never memory.

#include "base/error.h"
#include "tensor/stored_tensor.h"
#include "tensor/view.h"

namespace fp8train::ops {

/// A view of `count` elements of `dtype`.
inline bool holds(const ConstView& view, DType dtype, int64_t count) {
  return view.dtype == dtype && view.count() == count && (count == 0 || !view.empty());
}

/// A scratch view of at least `count` elements of `dtype`.
inline bool has_space(const ConstView& view, DType dtype, int64_t count) {
  return view.dtype == dtype && view.count() >= count && (count == 0 || !view.empty());
}

/// Elements as [rows, back()] with rows matching.
inline bool same_matrix(const ConstView& a, const ConstView& b) {
  return a.count() == b.count() && a.shape.back() == b.shape.back();
}

/// A stored tensor of `count` values: its format, its codes and its scales fit together.
inline void check_stored(const StoredTensor& tensor, int64_t count) {
  check(is_stored_format(tensor.format), "no tensor is stored in this format");
  check(holds(tensor.codes, tensor.format.dtype, count),
        "the codes of a stored tensor are as its format says, and as many as values");
  const int64_t scales = stored_scales(tensor.format, count);
  check(scales == 0 || holds(tensor.scales, DType::f32, scales),
        "a stored tensor has the scales that stored_scales says");
}

}  // namespace fp8train::ops
