#include "ops/attention/kv_cache.h"

#include <cstring>

#include "ops/dispatch/cpu_operations.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {
HeadsView append_to_cache(Stream /*stream*/, HeadsView rows, View cache, int64_t batch,
                          int64_t length, int64_t width, int64_t past) {
  const int64_t capacity = cache.shape[1];
  const size_t element = size_of(rows.dtype);
  const size_t row_bytes = static_cast<size_t>(width) * element;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t t = 0; t < length; ++t) {
      const auto from = static_cast<size_t>((b * rows.length_capacity + t) * rows.row_stride);
      const auto to = static_cast<size_t>(b * capacity + past + t);
      std::memcpy(static_cast<char*>(cache.data) + to * row_bytes,
                  static_cast<const char*>(rows.data) + from * element, row_bytes);
    }
  }
  return {
      .data = cache.data, .dtype = cache.dtype, .row_stride = width, .length_capacity = capacity};
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
