#pragma once
// Code that the benchmarks share: repeated timing and operands.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "device/device.h"
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

/// Returns uniform_values in `dtype`.
Tensor random_matrix(Device& device, DType dtype, int64_t rows, int64_t columns);

/// c[m, n] of a[m, k] and b[n, k].
struct GemmShape {
  int64_t m = 0, n = 0, k = 0;

  double flops() const;
  std::string text() const;  ///< "512x1024x512"
};

/// The engine that multiplies operands of this type on the device, in words.
const char* gemm_engine(const Device& device, DType operand);

/// Returns the format of codes with one scale, or with a scale for each block of x, which the cast
/// itself finds: fp32, e8m0 for 1x32.
TensorFormat codes_format(ScaleBlock block, DType dtype = DType::e4m3,
                          ScalePolicy policy = ScalePolicy::current);

/// A matrix [rows, columns] in such a format, with memory of its own, as the device's GEMM reads
/// it; `both`: also transposed.
struct BenchCodes {
  BenchCodes(Device& device, const TensorFormat& format, int64_t rows, int64_t columns,
             bool both = false);
  QuantizedTensor encoded() const;
  /// With delayed scaling under the scale that is there, recording the amax; with a current scale
  /// of the tensor after a read of x that finds it.
  void cast(const Stream& stream, const ConstView& x) const;
  ops::GemmOperand operand(bool transposed) const { return {encoded().rowwise, transposed}; }

  struct Orientation {
    Tensor codes, scales, cast_scales;
  };
  TensorFormat format;
  ScaleLayout layout;
  Orientation rowwise, columnwise;
  Tensor state;  ///< of the tensor: scale, its reciprocal, amax
};

/// Sets initial values of the usual deviation that take no time to draw. Throws DeviceError.
void set_quick_weights(Device& device, ParameterStore& store);

}  // namespace fp8train
