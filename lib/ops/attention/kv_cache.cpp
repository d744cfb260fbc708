#include "ops/attention/kv_cache.h"

#include "base/error.h"
#include "ops/dispatch/op_table.h"

namespace fp8train::ops {

HeadsView append_to_cache(Stream stream, const CacheAppend& call) {
  check(call.cache.shape.rank() == 3 && call.cache.shape[0] == call.batch &&
            call.cache.shape[2] == call.width && call.cache.dtype == call.rows.dtype &&
            call.past + call.length <= call.cache.shape[1],
        "append_to_cache: the cache is [batch, capacity, width] of the rows' type with space left");
  return dispatch<&OpTable::append_to_cache>(stream, call);
}

}  // namespace fp8train::ops
