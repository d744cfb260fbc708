// Tensors as they are stored.

#include "ops/dispatch/meta_counts.h"

namespace fp8train::ops::meta {

void store(Stream stream, const Store& call) {
  const bool by_tensor = scaled_by_tensor(call.to);
  const OpBytes read = bytes_of(call.x) + (call.add ? stored_bytes(call.to) : 0.0);
  if (call.step == CastStep::amax) {
    return count(stream, read);
  }
  const bool finds = by_tensor && call.step == CastStep::all;
  count(stream, {.bytes = (finds ? 2 : 1) * read + stored_bytes(call.to),
                 .launches = 1 + (by_tensor ? 1 : 0) + (finds ? 1 : 0)});
}

void read_stored(Stream stream, const Encoded& x, View y) {
  count(stream, stored_bytes(x) + bytes_of(y));
}

void count_at_maximum(Stream stream, ConstView codes, AutoScale* /*automatic*/) {
  count(stream, bytes_of(codes) + sizeof(AutoScale));
}

void update_auto_scales(Stream stream, const AutoScale* /*of_ranks*/, int64_t ranks,
                        AutoScale* /*scales*/, int64_t scales, const int32_t* /*skip*/) {
  count(stream, static_cast<double>((ranks + 2) * scales) * sizeof(AutoScale));
}

}  // namespace fp8train::ops::meta
