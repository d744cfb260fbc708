#pragma once
// Copies of rows between orders: into a cache of keys and values, and to and from the blocks that
// ranks exchange.

#include <array>

#include "device/stream.h"
#include "tensor/view.h"

namespace fp8train::ops {

/// The arguments of copy_rows(). Strides are in elements, and may be negative.
struct RowCopy {
  const void* from = nullptr;
  void* to = nullptr;
  DType dtype = DType::f32;
  std::array<int64_t, 3> extents = {1, 1, 1};
  int64_t width = 0;  ///< elements of a row
  std::array<int64_t, 3> from_strides = {}, to_strides = {};
};

/// Copies row (i, j, k) of `from` to row (i, j, k) of `to`, for all indices below the extents. Rows
/// do not overlap.
void copy_rows(Stream stream, const RowCopy& call);

/// Rows in memory; strides as those of RowCopy.
struct RowOrder {
  void* data;
  std::array<int64_t, 3> strides;
};
/// Copies rows in the order `a` to `b`, or back. `rows` gives their type, extents and width.
void copy_between(Stream stream, const RowOrder& a, const RowOrder& b, RowCopy rows, bool forward);

}  // namespace fp8train::ops
