#include "ops/norm/norm.h"

#include "ops/cast/quantize_checks.h"
#include "ops/dispatch/op_table.h"

namespace fp8train::ops {
namespace {

void check_rows(const NormRows& rows, const ConstView& x) {
  check(rows.stride == 0 || (rows.stride >= rows.heads * x.shape.back() && rows.heads > 0 &&
                             x.shape.rows() % rows.heads == 0),
        "norm: rows of heads overlap, or are none of whole positions");
}

void check_forward(const ConstView& x, const ConstView& weight, const ConstView& y,
                   const ConstView& mean, const ConstView& rstd) {
  check(is_float_type(x.dtype) && is_float_type(y.dtype), "norm: fp32, bf16 or fp16 expected");
  check(same_matrix(x, y), "norm: x and y must have the same rows");
  check(holds(weight, DType::f32, x.shape.back()), "norm: weight must be fp32 [n]");
  check(mean.empty() || holds(mean, DType::f32, x.shape.rows()), "norm: mean must be fp32 [rows]");
  check(holds(rstd, DType::f32, x.shape.rows()), "norm: rstd must be fp32 [rows]");
}

void check_residual(const ConstView& x, const ResidualAdd& residual) {
  const auto like_x = [&x](const ConstView& view) {
    return !view.empty() && view.dtype == x.dtype && same_matrix(x, view);
  };
  check(residual.empty() || (like_x(residual.delta) && like_x(residual.sum)),
        "norm: delta and sum of the residual must be like x");
}

/// Only LayerNorm has one.
void check_bias(const ConstView& x, const ConstView& mean, const ConstView& bias) {
  check(bias.empty() || (!mean.empty() && holds(bias, DType::f32, x.shape.back())),
        "norm: bias and its gradient must be fp32 [n] or empty, and empty for RMSNorm");
}

}  // namespace

void norm_forward(Stream stream, const NormForward& call) {
  check_forward(call.x, call.weight, call.y, call.mean, call.rstd);
  check_bias(call.x, call.mean, call.bias);
  check_residual(call.x, call.residual);
  check_sink(call.y, call.cast);
  check_rows(call.rows, call.x);
  const bool of_heads = call.rows.stride != 0;
  check(!of_heads || (call.cast.empty() && call.residual.empty()),
        "norm: heads have no cast and no residual");
  check(call.original.empty() || (of_heads && holds(call.original, call.x.dtype, call.x.count())),
        "norm: original must be like x, of heads");
  dispatch_as<&OpTable::norm_forward>(of_heads            ? "head_rms_norm_forward"
                                      : call.mean.empty() ? "rms_norm_forward"
                                                          : "layer_norm_forward",
                                      stream, call);
}

void norm_backward(Stream stream, const NormBackward& call) {
  check_forward(call.x, call.weight, call.dy, call.mean, call.rstd);
  check_rows(call.rows, call.x);
  const bool of_heads = call.rows.stride != 0;
  check(call.dx.dtype == (of_heads ? call.dy : call.x).dtype && same_matrix(call.x, call.dx),
        "norm backward: dx must be like x, of heads like dy");
  check(holds(call.weight_grad, DType::f32, call.x.shape.back()),
        "norm backward: weight_grad must be fp32 [n]");
  check_bias(call.x, call.mean, call.bias_grad);
  const int64_t partial_sums =
      norm_partial_rows(call.x.shape.rows() / call.rows.heads) * call.x.shape.back();
  check(has_space(call.scratch, DType::f32, (call.mean.empty() ? 1 : 2) * partial_sums),
        "norm backward: scratch must be fp32 [norm_partial_rows(rows), n], twice for LayerNorm");
  dispatch_as<&OpTable::norm_backward>(of_heads            ? "head_rms_norm_backward"
                                       : call.mean.empty() ? "rms_norm_backward"
                                                           : "layer_norm_backward",
                                       stream, call);
}

}  // namespace fp8train::ops
