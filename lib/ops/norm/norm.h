#pragma once
// RMSNorm and LayerNorm over the last dimension. x, y, dx, dy: [rows, n] in fp32, bf16 or fp16,
// where y and dy may have another type than x and dx; weight, bias and their gradients: fp32 [n].
// Row statistics and arithmetic are fp32. Sums have a fixed order on each device; cuda's is another
// one than the cpu's, and its results are the cpu's up to rounding (tests/ops/cuda/norm_test.cpp).

#include "base/math.h"
#include "ops/cast/quantize.h"

namespace fp8train::ops {

/// Rows of a chunk on cuda, which has one partial sum of a weight gradient there: at most 256
/// chunks, one wave of two blocks on each multiprocessor of a large GPU; the same on every GPU.
constexpr int64_t norm_chunk_rows(int64_t rows) {
  return rows <= 16 * 256 ? 16 : ceil_div(rows, 256);
}

/// Rows of the scratch of norms' backward: one for each partial sum of a weight gradient, of 64
/// rows of x on the cpu, of norm_chunk_rows on cuda.
constexpr int64_t norm_partial_rows(int64_t rows) {
  const int64_t on_cpu = ceil_div(rows, 64);
  const int64_t on_cuda = ceil_div(rows, norm_chunk_rows(rows));
  return on_cpu > on_cuda ? on_cpu : on_cuda;
}

/// An addition in front of a norm: sum = x + delta, rounded to the type of x; the norm is of the
/// sum. Both are like x; `sum` may be x or delta. Empty: the norm is of x.
struct ResidualAdd {
  ConstView delta;
  View sum;

  bool empty() const { return delta.empty(); }
};

struct RmsNormForward {
  ConstView x, weight;
  float eps = 0.0F;
  View y, rstd;
  QuantizeSink cast = {};  ///< y cast to FP8 too, or only that
  ResidualAdd residual = {};
};

/// y = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + eps); rstd: fp32 [rows], stored for backward.
void rms_norm_forward(Stream stream, const RmsNormForward& call);

struct RmsNormBackward {
  ConstView dy, x, weight, rstd;
  View dx;
  bool accumulate = false;
  View weight_grad, scratch;
  bool overwrite_weight_grad = false;
};

/// dx (+)= gradient of x (adds to dx when `accumulate`), weight_grad += gradient of weight (= where
/// it is overwritten). `scratch`: fp32 [norm_partial_rows(rows), n]; the sum over rows has a fixed
/// order (chunks of rows, then the chunks).
void rms_norm_backward(Stream stream, const RmsNormBackward& call);

struct LayerNormForward {
  ConstView x, weight;
  ConstView bias;  ///< may be empty: none
  float eps = 0.0F;
  View y, mean, rstd;
  QuantizeSink cast = {};  ///< y cast to FP8 too, or only that
  ResidualAdd residual = {};
};

/// y = (x - mean) * rstd * weight + bias; mean, rstd: fp32 [rows].
void layer_norm_forward(Stream stream, const LayerNormForward& call);

struct LayerNormBackward {
  ConstView dy, x, weight, mean, rstd;
  View dx;
  bool accumulate = false;
  View weight_grad;
  View bias_grad;  ///< may be empty: none
  View scratch;
  bool overwrite_weight_grad = false;  ///< and bias_grad
};

/// As rms_norm_backward; `scratch`: fp32 [2 * norm_partial_rows(rows), n].
void layer_norm_backward(Stream stream, const LayerNormBackward& call);

}  // namespace fp8train::ops
