// Compiled once per CPU level; products and sums round separately, so the bits are the same at
// every level.

#include "ops/dispatch/cpu_operations.h"
#include "ops/support/kernel_support_cpu.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {
namespace {

/// Rotates the pairs (j, j + half) of one head. cosine, sine: [half].
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

void rope(Stream /*stream*/, const Rope& call) {
  const int64_t half = call.head_dim / 2;
  const int64_t rows = call.batch * call.length;
  const float* cosine_table = call.cosines.as<float>();
  const float* sine_table = call.sines.as<float>();
  const int32_t* starts = call.document_starts.as<int32_t>();
  const float sign = call.inverse ? -1.0F : 1.0F;
  with_float_type(call.x.dtype, [&]<typename T>(TypeTag<T>) {
    T* data = static_cast<T*>(call.x.data);
#pragma omp parallel for schedule(static) if (rows * call.heads * call.head_dim >= \
                                              kParallelElements)
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t b = row / call.length;
      const int64_t t = row % call.length;
      const int64_t position = call.position_offset + t - (starts == nullptr ? 0 : starts[row]);
      const float* cosine = cosine_table + position * half;
      const float* sine = sine_table + position * half;
      T* values = data + (b * call.x.length_capacity + t) * call.x.row_stride;
      for (int64_t head = 0; head < call.heads; ++head) {
        rotate(values + head * call.head_dim, cosine, sine, sign, half);
      }
    }
  });
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
