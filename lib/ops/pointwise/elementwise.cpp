#include "ops/pointwise/elementwise.h"

#include "ops/dispatch/op_table.h"
#include "ops/support/checks.h"

namespace fp8train::ops {

void cast(Stream stream, ConstView x, View y) {
  check(is_float_type(x.dtype) && is_float_type(y.dtype), "cast: fp32, bf16 or fp16 expected");
  check(x.count() == y.count(), "cast: counts differ");
  dispatch<&OpTable::cast>(stream, x, y);
}

void add(Stream stream, ConstView a, ConstView b, View y) {
  check(is_float_type(a.dtype) && is_float_type(b.dtype) && is_float_type(y.dtype),
        "add: fp32, bf16 or fp16 expected");
  check(a.count() == y.count() && b.count() == y.count(), "add: counts differ");
  dispatch<&OpTable::add>(stream, a, b, y);
}

void add_bias(Stream stream, View y, ConstView bias) {
  check(is_float_type(y.dtype), "add_bias: y must be fp32, bf16 or fp16");
  check(holds(bias, DType::f32, y.shape.back()), "add_bias: bias must be fp32 [n]");
  dispatch<&OpTable::add_bias>(stream, y, bias);
}

void bias_backward(Stream stream, ConstView dy, View grad, View scratch, bool overwrite) {
  check(is_float_type(dy.dtype), "bias_backward: dy must be fp32, bf16 or fp16");
  check(holds(grad, DType::f32, dy.shape.back()), "bias_backward: grad must be fp32 [n]");
  check(has_space(scratch, DType::f32, bias_partial_rows(dy.shape.rows()) * grad.count()),
        "bias_backward: scratch must be fp32 [bias_partial_rows(rows), n]");
  dispatch<&OpTable::bias_backward>(stream, dy, grad, scratch, overwrite);
}

void copy_columns(Stream stream, ConstView x, int64_t first, View y) {
  const int64_t bits = facts_of(x.dtype).bits;
  check(x.dtype == y.dtype && x.shape.rows() == y.shape.rows() && first >= 0 &&
            first + y.shape.back() <= x.shape.back(),
        "copy_columns: y has some columns of x");
  check(first * bits % 8 == 0 && y.shape.back() * bits % 8 == 0,
        "copy_columns: columns of less than a byte are whole bytes together");
  dispatch<&OpTable::copy_columns>(stream, x, first, y);
}

void add_columns(Stream stream, const AddColumns& call) {
  check(is_float_type(call.x.dtype) && is_float_type(call.y.dtype),
        "add_columns: fp32, bf16 or fp16 expected");
  check(call.x.shape.rows() == call.y.shape.rows() && call.x_first >= 0 && call.y_first >= 0 &&
            call.x_first + call.columns <= call.x.shape.back() &&
            call.y_first + call.columns <= call.y.shape.back(),
        "add_columns: x and y have the columns");
  dispatch<&OpTable::add_columns>(stream, call);
}

void fill(Stream stream, View y, float value) {
  check(y.dtype == DType::f32, "fill: y must be fp32");
  dispatch<&OpTable::fill>(stream, y, value);
}

void scale_by(Stream stream, View y, const float* factor) {
  check(y.dtype == DType::f32, "scale_by: y must be fp32");
  check(factor != nullptr, "scale_by: no factor");
  dispatch<&OpTable::scale_by>(stream, y, factor);
}

}  // namespace fp8train::ops
