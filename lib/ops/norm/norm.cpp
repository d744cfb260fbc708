#include "ops/norm/norm.h"

#include "base/trace.h"
#include "ops/cast/quantize_checks.h"
#include "ops/dispatch/op_table.h"

namespace fp8train::ops {
namespace {

int64_t partial_sums(const ConstView& x) {
  return norm_partial_rows(x.shape.rows()) * x.shape.back();
}

void check_forward(const ConstView& x, const ConstView& weight, const ConstView& y,
                   const ConstView& rstd) {
  check(is_float_type(x.dtype) && is_float_type(y.dtype), "norm: fp32, bf16 or fp16 expected");
  check(same_matrix(x, y), "norm: x and y must have the same rows");
  check(holds(weight, DType::f32, x.shape.back()), "norm: weight must be fp32 [n]");
  check(holds(rstd, DType::f32, x.shape.rows()), "norm: rstd must be fp32 [rows]");
}

void check_residual(const ConstView& x, const ResidualAdd& residual) {
  const auto like_x = [&x](const ConstView& view) {
    return !view.empty() && view.dtype == x.dtype && same_matrix(x, view);
  };
  check(residual.empty() || (like_x(residual.delta) && like_x(residual.sum)),
        "norm: delta and sum of the residual must be like x");
}

void check_backward(const ConstView& dy, const ConstView& x, const ConstView& weight,
                    const ConstView& rstd, const ConstView& dx, const ConstView& weight_grad) {
  check_forward(x, weight, dy, rstd);
  check(dx.dtype == x.dtype && same_matrix(x, dx), "norm backward: dx must be like x");
  check(holds(weight_grad, DType::f32, x.shape.back()),
        "norm backward: weight_grad must be fp32 [n]");
}

}  // namespace

void rms_norm_forward(Stream stream, const RmsNormForward& call) {
  check_forward(call.x, call.weight, call.y, call.rstd);
  check_residual(call.x, call.residual);
  check_sink(call.y, call.cast);
  const TraceSpan span("rms_norm_forward");
  dispatch<&OpTable::rms_norm_forward>(stream, call);
}

void rms_norm_backward(Stream stream, const RmsNormBackward& call) {
  check_backward(call.dy, call.x, call.weight, call.rstd, call.dx, call.weight_grad);
  check(has_space(call.scratch, DType::f32, partial_sums(call.x)),
        "rms_norm_backward: scratch must be fp32 [norm_partial_rows(rows), n]");
  const TraceSpan span("rms_norm_backward");
  dispatch<&OpTable::rms_norm_backward>(stream, call);
}

void layer_norm_forward(Stream stream, const LayerNormForward& call) {
  check_forward(call.x, call.weight, call.y, call.rstd);
  check_residual(call.x, call.residual);
  check_sink(call.y, call.cast);
  check(call.bias.empty() || holds(call.bias, DType::f32, call.x.shape.back()),
        "layer_norm: bias must be fp32 [n] or empty");
  check(holds(call.mean, DType::f32, call.x.shape.rows()), "layer_norm: mean must be fp32 [rows]");
  const TraceSpan span("layer_norm_forward");
  dispatch<&OpTable::layer_norm_forward>(stream, call);
}

void layer_norm_backward(Stream stream, const LayerNormBackward& call) {
  check_backward(call.dy, call.x, call.weight, call.rstd, call.dx, call.weight_grad);
  check(holds(call.mean, DType::f32, call.x.shape.rows()),
        "layer_norm_backward: mean must be fp32 [rows]");
  check(call.bias_grad.empty() || holds(call.bias_grad, DType::f32, call.x.shape.back()),
        "layer_norm_backward: bias_grad must be fp32 [n] or empty");
  check(has_space(call.scratch, DType::f32, 2 * partial_sums(call.x)),
        "layer_norm_backward: scratch must be fp32 [2 * norm_partial_rows(rows), n]");
  const TraceSpan span("layer_norm_backward");
  dispatch<&OpTable::layer_norm_backward>(stream, call);
}

}  // namespace fp8train::ops
