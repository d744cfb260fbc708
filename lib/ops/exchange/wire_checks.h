#pragma once
// Conditions on what is packed for a wire, for the operations of wire.h and shared_wire.h.

#include "ops/exchange/wire.h"
#include "ops/support/checks.h"

namespace fp8train::ops {

/// Chunks in a flat tensor of `count` elements.
inline void check_chunk_range(const ChunkRange& range, int64_t chunk, int64_t chunks,
                              int64_t count) {
  check(chunk > 0 && chunk % kRangeAlignment == 0 && chunks > 0,
        "chunks on a wire are multiples of kRangeAlignment elements");
  const bool one_after_another = range.first == 0 && range.stride == 0;
  check(!one_after_another || count <= chunk * chunks, "the chunks on a wire hold a whole tensor");
  check(range.first % kRangeAlignment == 0 && range.stride % kRangeAlignment == 0 &&
            (range.stride == 0 || range.stride >= chunk),
        "chunks on a wire lie apart, at multiples of kRangeAlignment elements");
}

}  // namespace fp8train::ops
