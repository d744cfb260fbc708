#include "ops/attention/kv_cache.h"

#include "base/error.h"
#include "ops/dispatch/op_table.h"

namespace fp8train::ops {

HeadsView append_to_cache(Stream stream, HeadsView rows, View cache, int64_t batch, int64_t length,
                          int64_t width, int64_t past) {
  check(cache.shape.rank() == 3 && cache.shape[0] == batch && cache.shape[2] == width &&
            cache.dtype == rows.dtype && past + length <= cache.shape[1],
        "append_to_cache: the cache is [batch, capacity, width] of the rows' type with room left");
  return dispatch<&OpTable::append_to_cache>(stream, rows, cache, batch, length, width, past);
}

}  // namespace fp8train::ops
