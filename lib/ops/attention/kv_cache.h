#pragma once
// Keys and values of earlier positions, for generation.

#include "ops/attention/attention.h"

namespace fp8train::ops {

/// The arguments of append_to_cache().
struct CacheAppend {
  HeadsView rows;  ///< new keys or values
  View cache;      ///< [batch, capacity, width] of the rows' type
  int64_t batch = 0, length = 0, width = 0;
  int64_t past = 0;  ///< positions in the cache
};

/// Copies `length` new rows of each sequence (a slice of `width` elements) into the cache from
/// position `past` on, and returns the cache as the slice that attention reads.
HeadsView append_to_cache(Stream stream, const CacheAppend& call);

}  // namespace fp8train::ops
