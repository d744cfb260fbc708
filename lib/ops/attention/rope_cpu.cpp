// Compiled once per x86-64 level; products and sums round separately, so the bits are the same at
// every level.

#include "ops/dispatch/cpu_operations.h"
#include "ops/support/kernel_support_cpu.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {
namespace {

template <typename T>
FP8TRAIN_HD void rotate(T* head, const float* cosine, const float* sine, float sign, int64_t half) {
  T* other = head + half;
#pragma GCC ivdep
  for (int64_t j = 0; j < half; ++j) {
    const float x = load_as_float(head + j);
    const float y = load_as_float(other + j);
    const float s = sine[j] * sign;
    store_from_float(head + j, x * cosine[j] - y * s);
    store_from_float(other + j, y * cosine[j] + x * s);
  }
}

}  // namespace

void rope(Stream /*stream*/, HeadsView x, int64_t batch, int64_t length, int64_t heads,
          int64_t head_dim, ConstView cosines, ConstView sines, int64_t position_offset,
          bool inverse) {
  const int64_t half = head_dim / 2;
  const int64_t rows = batch * length;
  const float* cosine_table = cosines.as<float>();
  const float* sine_table = sines.as<float>();
  const float sign = inverse ? -1.0F : 1.0F;
  with_float_type(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    T* data = static_cast<T*>(x.data);
#pragma omp parallel for schedule(static) if (rows * heads * head_dim >= kParallelElements)
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t b = row / length;
      const int64_t t = row % length;
      const float* cosine = cosine_table + (position_offset + t) * half;
      const float* sine = sine_table + (position_offset + t) * half;
      T* values = data + (b * x.length_capacity + t) * x.row_stride;
      for (int64_t head = 0; head < heads; ++head) {
        rotate(values + head * head_dim, cosine, sine, sign, half);
      }
    }
  });
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
