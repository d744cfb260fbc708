#pragma once
// Code that the benchmarks share: repeated timing and operands.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "device/device.h"
#include "engine/engine.h"
#include "engine/gemm_rate.h"
#include "nn/parameter.h"
#include "numeric/dtype.h"
#include "ops/gemm/gemm.h"
#include "tensor/encoded.h"
#include "tensor/tensor.h"
#include "tensor/tensor_format.h"

namespace fp8train {

/// Median seconds of `work` over repetitions that fill `min_seconds` (at least three), after one
/// warm-up.
double median_seconds(const std::function<void()>& work, double min_seconds);

/// Returns the median seconds of what `work` submits to the device. On a GPU several submissions
/// are timed at once, so that the cost of a launch and a wait hardly counts.
double device_seconds(Device& device, const std::function<void()>& work, double min_seconds);

/// uniform_values in `dtype`; FP8 by a cast with scale 1.
Tensor random_matrix(Device& device, DType dtype, int64_t rows, int64_t columns);

/// c[m, n] of a[m, k] and b[n, k].
struct GemmShape {
  int64_t m = 0, n = 0, k = 0;

  double flops() const;
  std::string text() const;  ///< "512x1024x512"
};

/// The engine that multiplies operands of this type on the device, in words.
const char* gemm_engine(const Device& device, DType operand);

/// E4M3 by a cast with a scale for each block of x, found in the cast itself: fp32, e8m0 for
/// 1x32.
TensorFormat blockwise_role_format(ScaleBlock block);

/// One orientation of a matrix in such a format, [rows, columns], with memory of its own, as the
/// device's GEMM reads it.
struct BlockwiseCodes {
  BlockwiseCodes(Device& device, const TensorFormat& format, int64_t rows, int64_t columns);
  Encoded encoded() const;
  void cast(const Stream& stream, const ConstView& x) const;
  ops::GemmOperand operand(bool transposed) const { return {encoded(), transposed}; }

  TensorFormat format;
  ScaleLayout layout;
  Tensor codes, scales, cast_scales;
};

/// An FP8 matrix [rows, columns] with one scale, with memory of its own.
struct TensorCodes {
  TensorCodes(Device& device, DType dtype, int64_t rows, int64_t columns, bool transposed);
  /// With the scale that is there, as in delayed scaling, recording the amax; or `current`: after a
  /// read of x that finds it.
  void cast(const Stream& stream, const ConstView& x, bool current) const;
  QuantizedTensor tensor() const;
  ops::GemmOperand operand(bool transposed) const { return {tensor().rowwise, transposed}; }

  Tensor codes, columnwise_codes;
  Tensor state;  // scale, its reciprocal, amax
};

/// Sets initial values of the usual deviation that take no time to draw. Throws DeviceError.
void set_quick_weights(Device& device, ParameterStore& store);

/// Returns random tokens and targets of one micro-batch of this rank.
Batch random_batch(const EngineSettings& settings, int rank);

}  // namespace fp8train
