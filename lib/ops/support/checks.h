#pragma once
// Conditions that the dispatching functions of this module check before they call a backend. Only
// shapes and types are looked at, never memory.

#include "base/error.h"
#include "tensor/encoded.h"
#include "tensor/view.h"

namespace fp8train::ops {

/// Whether the view has `count` elements of `dtype`, and memory for them.
inline bool holds(const ConstView& view, DType dtype, int64_t count) {
  return view.dtype == dtype && view.count() == count && (count == 0 || !view.empty());
}

/// Whether a scratch view has memory for at least `count` elements of `dtype`.
inline bool has_space(const ConstView& view, DType dtype, int64_t count) {
  return view.dtype == dtype && view.count() >= count && (count == 0 || !view.empty());
}

/// Whether both, seen as [rows, last extent], have the same extents.
inline bool same_matrix(const ConstView& a, const ConstView& b) {
  return a.count() == b.count() && a.shape.back() == b.shape.back();
}

/// Throws InternalError unless the tensor holds `count` values in a format that is stored from one
/// step to the next or, with `saved`, for backward: codes and scales must be those of the format.
inline void check_stored(const Encoded& tensor, int64_t count, bool saved = false) {
  check(is_stored_format(tensor.format) || (saved && tensor.format == saved_groups()),
        "no tensor is stored in this format");
  check(holds(tensor.codes, tensor.format.dtype, count),
        "a stored tensor needs a code of its format's type for each value");
  const int64_t scales = stored_scales(tensor.format, count);
  check(scales == 0 || holds(tensor.scales, scales_type(tensor.format), scales),
        "a stored tensor needs the scales that stored_scales() counts");
}

}  // namespace fp8train::ops
