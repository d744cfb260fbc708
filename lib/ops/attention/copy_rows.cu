#include <algorithm>

#include "ops/dispatch/cuda_operations.h"
#include "ops/support/kernel_support.cuh"

namespace fp8train::ops::cuda {
namespace {

/// The strides of three indices.
struct Strides {
  int64_t of[3];
};

/// Copies rows, a unit for each index of map. All numbers are in units.
template <typename Unit>
struct CopyRows {
  const Unit* from;
  Unit* to;
  Strides from_strides, to_strides;
  int64_t middle, inner, width;

  template <int N>
  __device__ void run(int64_t i) const {
    const int64_t row = i / width;
    const int64_t column = i - row * width;
    const int64_t outer_row = row / inner;
    const int64_t index[3] = {outer_row / middle, outer_row % middle, row % inner};
    int64_t source = column;
    int64_t target = column;
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
      source += index[axis] * from_strides.of[axis];
      target += index[axis] * to_strides.of[axis];
    }
    to[target] = from[source];
  }
};

/// Starts the copy, in units of `per_unit` elements.
template <typename Unit>
void copy_units(const Stream& stream, const RowCopy& call, int64_t per_unit) {
  const auto in_units = [&](const std::array<int64_t, 3>& strides) {
    return Strides{{strides[0] / per_unit, strides[1] / per_unit, strides[2] / per_unit}};
  };
  const int64_t rows = call.extents[0] * call.extents[1] * call.extents[2];
  const int64_t width = call.width / per_unit;
  map<1>(stream, rows * width, false,
         CopyRows<Unit>{static_cast<const Unit*>(call.from), static_cast<Unit*>(call.to),
                        in_units(call.from_strides), in_units(call.to_strides), call.extents[1],
                        call.extents[2], width});
}

}  // namespace

void copy_rows(Stream stream, const RowCopy& call) {
  const auto element = static_cast<int64_t>(size_of(call.dtype));
  const int64_t per_wide = 16 / element;
  const auto is_wide = [per_wide](int64_t count) { return count % per_wide == 0; };
  if (is_wide(call.width) &&
      std::all_of(call.from_strides.begin(), call.from_strides.end(), is_wide) &&
      std::all_of(call.to_strides.begin(), call.to_strides.end(), is_wide) &&
      is_aligned(call.from) && is_aligned(call.to)) {
    copy_units<Pack<uint32_t, 4>>(stream, call, per_wide);
  } else if (element == 4) {
    copy_units<uint32_t>(stream, call, 1);
  } else if (element == 2) {
    copy_units<uint16_t>(stream, call, 1);
  } else {
    throw_no_kernel_for(call.dtype);
  }
}

}  // namespace fp8train::ops::cuda
