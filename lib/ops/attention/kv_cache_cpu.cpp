#include "ops/attention/kv_cache.h"

#include <cstring>

#include "ops/dispatch/cpu_operations.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {
HeadsView append_to_cache(Stream /*stream*/, const CacheAppend& call) {
  const int64_t capacity = call.cache.shape[1];
  const size_t element = size_of(call.rows.dtype);
  const size_t row_bytes = static_cast<size_t>(call.width) * element;
  for (int64_t b = 0; b < call.batch; ++b) {
    for (int64_t t = 0; t < call.length; ++t) {
      const auto from =
          static_cast<size_t>((b * call.rows.length_capacity + t) * call.rows.row_stride);
      const auto to = static_cast<size_t>(b * capacity + call.past + t);
      std::memcpy(static_cast<char*>(call.cache.data) + to * row_bytes,
                  static_cast<const char*>(call.rows.data) + from * element, row_bytes);
    }
  }
  return {.data = call.cache.data,
          .dtype = call.cache.dtype,
          .row_stride = call.width,
          .length_capacity = capacity};
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
