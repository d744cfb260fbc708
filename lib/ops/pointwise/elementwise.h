#pragma once
// Element-wise and data-movement operations. Views are packed; element types are fp32, bf16 or fp16
// unless stated. Arithmetic is in fp32 and rounded once to the output's type. Asynchronous on cuda;
// nothing is returned to the host.

#include <cstdint>

#include "base/host_device.h"
#include "base/math.h"
#include "device/stream.h"
#include "tensor/view.h"

namespace fp8train::ops {

/// y = x converted to y's type (any of fp32, bf16, fp16 to any), nearest-even. Same count. What
/// is too large for fp16 becomes infinity.
void cast(Stream stream, ConstView x, View y);

/// y = a + b. y may be a or b.
void add(Stream stream, ConstView a, ConstView b, View y);

/// y[r, c] += bias[c]. y: [rows, n], bias: fp32 [n].
void add_bias(Stream stream, View y, ConstView bias);

/// Rows that bias_backward adds to one partial sum, and the number of partial sums of `rows` rows.
constexpr int64_t kBiasChunkRows = 64;
constexpr FP8TRAIN_HD int64_t bias_partial_rows(int64_t rows) {
  return ceil_div(rows, kBiasChunkRows);
}

/// grad[c] += sum over rows of dy[r, c]; fp32 [n]; = with `overwrite`. Fixed order: chunks of
/// kBiasChunkRows, then the chunks in order. `scratch`: fp32 [bias_partial_rows(rows), n].
void bias_backward(Stream stream, ConstView dy, View grad, View scratch, bool overwrite = false);

/// y = the columns first, first + 1, .. of x, both seen as matrices; as many as y has. Any one
/// type; of less than a byte: whole bytes.
void copy_columns(Stream stream, ConstView x, int64_t first, View y);

/// Columns of one matrix that become those of another: y[r, y_first + c] (+)= factor x[r, x_first +
/// c]. x and y do not overlap.
struct AddColumns {
  ConstView x;
  View y;
  int64_t x_first = 0, y_first = 0;
  int64_t columns = 0;
  float factor = 1.0F;
  bool overwrites = false;  ///< y = factor x
};
void add_columns(Stream stream, const AddColumns& call);

/// y[i] = value; y fp32.
void fill(Stream stream, View y, float value);

/// y *= *factor, a device scalar. y fp32.
void scale_by(Stream stream, View y, const float* factor);

}  // namespace fp8train::ops
