// Compiled once per CPU level. Maxima and powers of two: the same bits at every level.

#include "ops/pointwise/smoothing.h"

#include "base/math.h"
#include "ops/cast/quantize_support_cpu.h"
#include "ops/dispatch/cpu_operations.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {
namespace {

constexpr int64_t kColumns = 128;  // of one thread at a time

/// Raises `largest`, magnitude bits, to those of x, element by element.
template <typename X>
FP8TRAIN_HD void raise(const X* __restrict x, uint32_t* __restrict largest, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = magnitude_bits(x + i);
    largest[i] = bits > largest[i] ? bits : largest[i];
  }
}

/// y = x / scale, or with Add y += that.
template <bool Add>
FP8TRAIN_HD void divide_row(const float* x, const float* __restrict scale, float* y,
                            int64_t count) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    y[i] = (Add ? y[i] : 0.0F) + x[i] / scale[i];
  }
}

}  // namespace

void find_smoothing(Stream /*stream*/, ConstView gate_up, View scale) {
  const int64_t width = scale.count();
  const int64_t rows = gate_up.shape.rows();
  float* const to = scale.as<float>();
  with_float_type(gate_up.dtype, [&](auto tag) {
    const auto* up = gate_up.as<typename decltype(tag)::Type>() + width;
    const int64_t chunks = ceil_div(width, kColumns);
#pragma omp parallel for schedule(static) if (rows * width >= kParallelElements)
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const int64_t begin = chunk * kColumns;
      const int64_t length = minimum(kColumns, width - begin);
      uint32_t largest[kColumns] = {};
      for (int64_t row = 0; row < rows; ++row) {
        raise(up + row * 2 * width + begin, largest, length);
      }
      for (int64_t i = 0; i < length; ++i) {
        to[begin + i] = smoothing_scale(value_of_magnitude(largest[i], tag));
      }
    }
  });
}

void divide_columns(Stream /*stream*/, ConstView x, ConstView scale, View y, bool add) {
  const int64_t width = scale.count();
  const int64_t rows = x.shape.rows();
  const auto* from = x.as<float>();
  const auto* divisor = scale.as<float>();
  auto* to = y.as<float>();
#pragma omp parallel for schedule(static) if (rows * width >= kParallelElements)
  for (int64_t row = 0; row < rows; ++row) {
    (add ? divide_row<true> : divide_row<false>)(from + row * width, divisor, to + row * width,
                                                 width);
  }
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
