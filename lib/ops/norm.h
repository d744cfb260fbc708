#pragma once
// RMSNorm and LayerNorm over the last dimension. x, y, dx, dy: [rows, n] in fp32, bf16 or fp16,
// where y and dy may have another type than x and dx; weight, bias and their gradients: fp32 [n].
// Row statistics and arithmetic are fp32.

#include "ops/quantize.h"

namespace fp8train::ops {

/// Rows of the scratch of norms' backward: one partial sum of a weight gradient for each 64 rows of
/// x, which is part of the sum's definition.
constexpr int64_t norm_partial_rows(int64_t rows) {
  return (rows + 63) / 64;
}

/// y = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + eps); rstd: fp32 [rows], kept for backward.
/// `cast`: y cast to FP8 too, or only that (see QuantizeSink).
void rms_norm_forward(Stream stream, ConstView x, ConstView weight, float eps, View y, View rstd,
                      const QuantizeSink& cast = {});

/// dx (+)= gradient of x (adds to dx when `accumulate`), weight_grad += gradient of weight.
/// `scratch`: fp32 [norm_partial_rows(rows), n]; the sum over rows has a fixed order (64-row
/// chunks, then the chunks in order).
void rms_norm_backward(Stream stream, ConstView dy, ConstView x, ConstView weight, ConstView rstd,
                       View dx, bool accumulate, View weight_grad, View scratch);

/// y = (x - mean) * rstd * weight + bias; mean, rstd: fp32 [rows]. `bias` may be empty (none), and
/// bias_grad below too. `cast` as above.
void layer_norm_forward(Stream stream, ConstView x, ConstView weight, ConstView bias, float eps,
                        View y, View mean, View rstd, const QuantizeSink& cast = {});

/// As rms_norm_backward; `scratch`: fp32 [2 * norm_partial_rows(rows), n].
void layer_norm_backward(Stream stream, ConstView dy, ConstView x, ConstView weight, ConstView mean,
                         ConstView rstd, View dx, bool accumulate, View weight_grad, View bias_grad,
                         View scratch);

}  // namespace fp8train::ops
