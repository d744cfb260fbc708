#pragma once
// RMSNorm and LayerNorm over the last dimension. x, y, dx, dy: [rows, n] in fp32, bf16 or fp16,
// where y and dy may have another type than x and dx; weight, bias and their gradients: fp32 [n].
// Row statistics and arithmetic are fp32. Sums have a fixed order on each device; cuda's is another
// one than the cpu's, and its results are the cpu's up to rounding (tests/ops/cuda/norm_test.cpp).

#include "base/host_device.h"
#include "base/math.h"
#include "ops/cast/quantize.h"

namespace fp8train::ops {

/// Rows of a chunk, of which cuda makes one partial sum of a weight gradient: at most 256 chunks,
/// one wave of two blocks on each multiprocessor of a large GPU; the same on every GPU.
constexpr int64_t norm_chunk_rows(int64_t rows) {
  return rows <= 16 * 256 ? 16 : ceil_div(rows, 256);
}

/// Rows of the scratch of a norm's backward: one for each partial sum of a weight gradient, which
/// is of 64 rows of x on the cpu and of norm_chunk_rows() on cuda.
constexpr int64_t norm_partial_rows(int64_t rows) {
  const int64_t on_cpu = ceil_div(rows, 64);
  const int64_t on_cuda = ceil_div(rows, norm_chunk_rows(rows));
  return on_cpu > on_cuda ? on_cpu : on_cuda;
}

/// The addresses of rows: those of heads of a projection are slices of wider rows. Row r = (p, h)
/// of n elements is head h of `heads` in position p of `stride` elements.
struct NormRows {
  int64_t stride = 0;  ///< 0: rows of n elements, one after another
  int64_t heads = 1;

  FP8TRAIN_HD NormRows or_packed(int64_t n) const { return stride == 0 ? NormRows{n, 1} : *this; }
  FP8TRAIN_HD int64_t at(int64_t row, int64_t n) const {
    return heads == 1 ? row * stride : row / heads * stride + row % heads * n;
  }
};

/// An addition in front of a norm: sum = x + delta, rounded to the type of x; the norm is of the
/// sum. Both are like x; `sum` may be x or delta. Empty: the norm is of x.
struct ResidualAdd {
  ConstView delta;
  View sum;

  bool empty() const { return delta.empty(); }
};

/// RMSNorm where `mean` is empty, else LayerNorm.
struct NormForward {
  ConstView x, weight;
  ConstView bias = {};  ///< bias of LayerNorm; may be empty: none
  float eps = 0.0F;
  View y;
  View mean = {};
  View rstd;
  QuantizeSink cast = {};  ///< y cast to FP8 too, or only that
  ResidualAdd residual = {};
  NormRows rows = {};  ///< of x and y, which may be the same; heads have no cast and no residual
  View original = {};  ///< where it is not empty, x is copied there for backward
};

/// RMSNorm: y = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + eps). LayerNorm: y = (x - mean) *
/// rstd * weight + bias. mean, rstd: fp32 [rows], stored for backward.
void norm_forward(Stream stream, const NormForward& call);

/// RMSNorm where `mean` is empty, else LayerNorm.
struct NormBackward {
  ConstView dy, x, weight;
  ConstView mean = {};
  ConstView rstd;
  View dx;
  bool accumulate = false;
  View weight_grad;
  View bias_grad = {};  ///< gradient of LayerNorm's bias; may be empty: none
  View scratch;
  bool overwrite_weight_grad = false;  ///< overwrites bias_grad as well
  NormRows rows = {};  ///< of dy and dx. Of heads they may be the same, and have one type.
};

/// dx (+)= gradient of x (adds to dx when `accumulate`), weight_grad += gradient of weight (= where
/// it is overwritten). `scratch`: fp32 [norm_partial_rows(rows), n], twice as many for LayerNorm;
/// `rows` are positions if x is heads. The sum over rows has a fixed order (chunks of rows, then
/// the chunks).
void norm_backward(Stream stream, const NormBackward& call);

}  // namespace fp8train::ops
