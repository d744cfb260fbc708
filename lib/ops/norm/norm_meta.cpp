#include "ops/dispatch/meta_counts.h"
#include "ops/norm/norm_one_pass.h"

namespace fp8train::ops::meta {
namespace {

/// The bytes that a second kernel reads again to write codes.
OpBytes recast_bytes(const NormForward& call, bool recasts) {
  return recasts ? bytes_of(call.x) + bytes_of(call.rstd) : OpBytes(0.0);
}

/// The bytes of an addition in front of the norm, without x.
OpBytes residual_bytes(const ResidualAdd& residual) {
  return bytes_of(residual.delta) + bytes_of(residual.sum);
}

/// Returns the bytes moved for gradients that are added to, or overwritten.
OpBytes gradient_bytes(const View& gradient, bool overwrite) {
  return bytes_of(gradient) * (overwrite ? 1 : 2);
}

}  // namespace

void norm_forward(Stream stream, const NormForward& call) {
  const bool casts = !call.cast.out.empty();
  const bool recasts = casts && !casts_in_one_pass(call);
  const OpBytes bytes = bytes_of(call.x) + bytes_of(call.weight) + bytes_of(call.bias) +
                        bytes_of(call.y) + bytes_of(call.original) + bytes_of(call.mean) +
                        bytes_of(call.rstd) + bytes_of(call.cast) + recast_bytes(call, recasts) +
                        residual_bytes(call.residual);
  if (call.rows.stride != 0) {
    return count(stream, bytes);
  }
  count(stream, bytes,
        recasts ? "norm_forward recast"
        : casts ? "norm_forward cast"
                : "norm_forward",
        call.x.count(), recasts ? 2 : 1);
}

void norm_backward(Stream stream, const NormBackward& call) {
  const OpBytes bytes = bytes_of(call.dy) + bytes_of(call.x) + bytes_of(call.weight) +
                        bytes_of(call.mean) + bytes_of(call.rstd) +
                        bytes_of(call.dx) * (call.accumulate ? 2 : 1) +
                        gradient_bytes(call.weight_grad, call.overwrite_weight_grad) +
                        gradient_bytes(call.bias_grad, call.overwrite_weight_grad);
  if (call.rows.stride != 0) {
    return count(stream, {.bytes = bytes, .launches = 2});
  }
  count(stream, bytes, "norm_backward", call.x.count(), call.bias_grad.empty() ? 2 : 3);
}

}  // namespace fp8train::ops::meta
