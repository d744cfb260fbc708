#pragma once
// Keys and values of earlier positions, for generation.

#include "ops/attention/attention.h"

namespace fp8train::ops {

struct CacheAppend {
  HeadsView rows;
  View cache;
  int64_t batch = 0, length = 0, width = 0;
  int64_t past = 0;
};

/// Copies `length` new rows per sequence (a slice of `width` elements) into cache [batch, capacity,
/// width] from position `past` on; returns the cache as the slice that attention reads.
HeadsView append_to_cache(Stream stream, const CacheAppend& call);

}  // namespace fp8train::ops
