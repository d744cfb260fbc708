#pragma once
// Conditions on what is packed for a wire, for the operations of wire.h and shared_wire.h.

#include "ops/exchange/wire.h"
#include "ops/support/checks.h"

namespace fp8train::ops {

/// Chunks in a flat tensor of `count` elements.
inline void check_places(const ChunkPlaces& places, int64_t chunk, int64_t chunks, int64_t count) {
  check(chunk > 0 && chunk % kStoredGroup == 0 && chunks > 0,
        "chunks on a wire are whole groups of 128 elements");
  const bool one_after_another = places.first == 0 && places.stride == 0;
  check(!one_after_another || count <= chunk * chunks, "the chunks on a wire hold a whole tensor");
  check(places.first % kStoredGroup == 0 && places.stride % kStoredGroup == 0 &&
            (places.stride == 0 || places.stride >= chunk),
        "chunks on a wire lie apart, at whole groups of 128 elements");
}

}  // namespace fp8train::ops
