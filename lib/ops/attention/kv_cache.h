#pragma once
// Keys and values of earlier positions, for generation.

#include "ops/attention/attention.h"

namespace fp8train::ops {

/// Copies `length` new rows per sequence (a slice of `width` elements) into cache [batch, capacity,
/// width] from position `past` on; returns the cache as the slice that attention reads.
HeadsView append_to_cache(Stream stream, HeadsView rows, View cache, int64_t batch, int64_t length,
                          int64_t width, int64_t past);

}  // namespace fp8train::ops
