#include "ops/pointwise/activation.h"

#include "ops/cast/quantize_checks.h"
#include "ops/dispatch/op_table.h"

namespace fp8train::ops {
namespace {

/// [rows, 2 F] next to [rows, F], both of one type.
bool is_gated(const ConstView& gate_up, const ConstView& y) {
  return gate_up.dtype == y.dtype && gate_up.shape.back() == 2 * y.shape.back() &&
         gate_up.count() == 2 * y.count();
}

}  // namespace

void swiglu_forward(Stream stream, ConstView gate_up, View y, const QuantizeSink& cast,
                    ConstView smoothing, bool silu_in_codes) {
  check(is_float_type(y.dtype), "swiglu: fp32, bf16 or fp16 expected");
  check(is_gated(gate_up, y), "swiglu: gate_up must be [rows, 2 F] of y's type");
  check(smoothing.empty() || holds(smoothing, DType::f32, y.shape.back()),
        "swiglu: smoothing must be fp32 [F]");
  check_sink(y, cast);
  dispatch<&OpTable::swiglu_forward>(stream, gate_up, y, cast, smoothing, silu_in_codes);
}

void swiglu_backward(Stream stream, ConstView dy, ConstView gate_up, View d_gate_up,
                     const QuantizeSink& cast, bool silu_in_codes) {
  check(is_float_type(dy.dtype), "swiglu: fp32, bf16 or fp16 expected");
  check(is_gated(gate_up, dy) && is_gated(d_gate_up, dy),
        "swiglu_backward: gate_up and its gradient must be [rows, 2 F] of dy's type");
  check_sink(d_gate_up, cast);
  dispatch<&OpTable::swiglu_backward>(stream, dy, gate_up, d_gate_up, cast, silu_in_codes);
}

void gelu_forward(Stream stream, ConstView x, View y, const QuantizeSink& cast) {
  check(is_float_type(x.dtype) && x.dtype == y.dtype, "gelu: x and y must share a float type");
  check(x.count() == y.count(), "gelu: counts differ");
  check_sink(y, cast);
  dispatch<&OpTable::gelu_forward>(stream, x, y, cast);
}

void gelu_backward(Stream stream, ConstView dy, ConstView x, View dx, const QuantizeSink& cast) {
  check(is_float_type(x.dtype) && x.dtype == dy.dtype && x.dtype == dx.dtype,
        "gelu_backward: dy, x and dx must share a float type");
  check(x.count() == dy.count() && x.count() == dx.count(), "gelu_backward: counts differ");
  check_sink(dx, cast);
  dispatch<&OpTable::gelu_backward>(stream, dy, x, dx, cast);
}

}  // namespace fp8train::ops
