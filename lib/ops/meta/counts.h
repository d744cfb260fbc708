#pragma once
// How operations of the meta device count their work.

#include "device/stream.h"
#include "ops/op_table.h"
#include "tensor/view.h"

namespace fp8train::ops::meta {

inline double bytes_of(const ConstView& view) {
  return view.empty() ? 0.0 : static_cast<double>(view.bytes());
}

inline double bytes_of(const HeadsView& view, int64_t rows, int64_t heads, int64_t head_dim) {
  return static_cast<double>(rows * heads * head_dim) * static_cast<double>(size_of(view.dtype));
}

inline double bytes_of(const QuantizeSink& cast) {
  return bytes_of(cast.out.codes) + bytes_of(cast.out.codes_transposed);
}

inline void count(const Stream& stream, double bytes) {
  stream.counters().bytes += bytes;
  stream.counters().operations += 1;
}

/// Those of ops/quantize.h and ops/granule_parts.h.
void fill_casts(OpTable& table);

}  // namespace fp8train::ops::meta
