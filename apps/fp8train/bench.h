#pragma once
// What the benchmarks share: repeated timing and the machine's GEMM ceiling.

#include <cstdint>
#include <functional>
#include <string>

#include "device/device.h"
#include "numeric/dtype.h"
#include "tensor/tensor.h"
#include "tensor/tensor_format.h"

namespace fp8train {

/// Median seconds of `work` over repetitions that fill `min_seconds` (at least three), after one
/// warm-up.
double median_seconds(const std::function<void()>& work, double min_seconds);

/// Uniform values in [-1, 1) in `dtype`; FP8 by a cast with scale 1.
Tensor random_matrix(Device& device, DType dtype, int64_t rows, int64_t columns);

/// FLOP/s of c[m, n] = a[m, k] b[n, k]^T with operands of `dtype` (fp32 result), on random data.
double gemm_rate(Device& device, DType dtype, int64_t m, int64_t n, int64_t k, double min_seconds);

/// One scaled GEMM: FLOP/s on random data, and empty or why it ran on dequantized operands.
struct ScaledRate {
  double flops;
  std::string dequantized_because;
};

/// c[m, n] (fp32) of a[m, k] and b[n, k] with a scale for each granule; casts are not timed.
ScaledRate scaled_gemm_rate(Device& device, const TensorFormat& a, const TensorFormat& b, int64_t m,
                            int64_t n, int64_t k, double min_seconds);

/// The best rate of a few large square shapes: what a step's GEMMs are measured against.
double gemm_ceiling(Device& device, DType dtype);

}  // namespace fp8train
