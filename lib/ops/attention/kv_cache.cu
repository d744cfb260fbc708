// Keys and values of earlier positions: a copy of rows.

#include "ops/dispatch/cuda_operations.h"
#include "ops/support/kernel_support.cuh"

namespace fp8train::ops::cuda {
namespace {

/// Sequence b's new rows t = 0 .. length - 1, in units of the copy.
struct CacheRows {
  int64_t from_sequence, from_row;  ///< units between sequences, and between rows
  int64_t to_sequence, to_row;
  int64_t length, width;
};

/// Copies rows, a unit for each index of map.
template <typename Unit>
struct CopyRows {
  const Unit* from;
  Unit* to;
  CacheRows rows;

  template <int N>
  __device__ void run(int64_t i) const {
    const int64_t row = i / rows.width;
    const int64_t column = i - row * rows.width;
    const int64_t b = row / rows.length;
    const int64_t t = row - b * rows.length;
    to[b * rows.to_sequence + t * rows.to_row + column] =
        from[b * rows.from_sequence + t * rows.from_row + column];
  }
};

/// Starts the copy. `rows` is in elements, of which a unit has `per_unit`.
template <typename Unit>
void copy_rows(const Stream& stream, const void* from, void* to, CacheRows rows, int64_t batch,
               int64_t per_unit) {
  for (int64_t* extent :
       {&rows.from_sequence, &rows.from_row, &rows.to_sequence, &rows.to_row, &rows.width}) {
    *extent /= per_unit;
  }
  map<1>(stream, batch * rows.length * rows.width, false,
         CopyRows<Unit>{static_cast<const Unit*>(from), static_cast<Unit*>(to), rows});
}

}  // namespace

HeadsView append_to_cache(Stream stream, const CacheAppend& call) {
  const int64_t capacity = call.cache.shape[1];
  const auto element = static_cast<int64_t>(size_of(call.rows.dtype));
  char* to = static_cast<char*>(call.cache.data) + call.past * call.width * element;
  const CacheRows layout = {.from_sequence = call.rows.length_capacity * call.rows.row_stride,
                            .from_row = call.rows.row_stride,
                            .to_sequence = capacity * call.width,
                            .to_row = call.width,
                            .length = call.length,
                            .width = call.width};
  const int64_t per_wide = 16 / element;
  if (call.width % per_wide == 0 && call.rows.row_stride % per_wide == 0 &&
      is_aligned(call.rows.data) && is_aligned(to)) {
    copy_rows<Pack<uint32_t, 4>>(stream, call.rows.data, to, layout, call.batch, per_wide);
  } else if (element == 4) {
    copy_rows<uint32_t>(stream, call.rows.data, to, layout, call.batch, 1);
  } else if (element == 2) {
    copy_rows<uint16_t>(stream, call.rows.data, to, layout, call.batch, 1);
  } else {
    throw_no_kernel_for(call.rows.dtype);
  }
  return {.data = call.cache.data,
          .dtype = call.cache.dtype,
          .row_stride = call.width,
          .length_capacity = capacity};
}

}  // namespace fp8train::ops::cuda
