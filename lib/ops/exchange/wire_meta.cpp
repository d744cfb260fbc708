// Bytes of packets between ranks.

#include "ops/dispatch/meta_counts.h"

namespace fp8train::ops::meta {
namespace {

/// Returns the share of a tensor's `count` elements that the first `covered` ones are.
double share_of(int64_t count, int64_t covered) {
  return count <= covered ? 1.0 : static_cast<double>(covered) / static_cast<double>(count);
}

}  // namespace

void pack_wire(Stream stream, const PackWire& call) {
  const double packed = share_of(call.x.count(), call.chunk * call.chunks);
  count(stream, packed * stored_bytes(call.x) +
                    static_cast<double>(call.chunks * wire_bytes(call.format, call.chunk)));
}

void sum_wire(Stream stream, const SumWire& call) {
  const int64_t copied = call.contributions - (call.exact_index >= 0 ? 1 : 0);
  count(stream, static_cast<double>(copied * call.chunks * wire_bytes(call.format, call.chunk)) +
                    bytes_of(call.exact) +
                    share_of(call.y.count(), call.chunk * call.chunks) * bytes_of(call.y));
}

void unpack_wire(Stream stream, const UnpackWire& call) {
  count(stream, 2 * share_of(call.y.count(), call.chunk * call.chunks) * stored_bytes(call.y));
}

void combine_ranks(Stream stream, ConstView parts, Combine /*how*/, View y) {
  count(stream, bytes_of(parts) + bytes_of(y));
}

void shared_amax(Stream stream, const SharedBucket& bucket, View amax) {
  count(stream,
        {.bytes = bytes_of(bucket.values) + bytes_of(bucket.tensor_of_group) + bytes_of(amax),
         .launches = 2});
}

void shared_scales(Stream stream, ConstView amax, const TensorFormat& /*format*/,
                   float /*pre_scale*/, View scales, ConstView /*automatic*/) {
  count(stream, bytes_of(amax) + bytes_of(scales));
}

void pack_shared(Stream stream, const SharedBucket& bucket, ConstView scales, View codes,
                 const ChunkRange& /*range*/) {
  const double packed = share_of(bucket.values.count(), codes.count());
  count(stream, packed * (bytes_of(bucket.values) + bytes_of(bucket.tensor_of_group)) +
                    bytes_of(scales) + bytes_of(codes));
}

void sum_shared(Stream stream, ConstView codes, View y) {
  count(stream, bytes_of(codes) + bytes_of(y));
}

void count_largest(Stream stream, ConstView codes, ConstView /*tensor_of_group*/,
                   ConstView /*automatic*/) {
  count(stream, bytes_of(codes));
}

void read_shared(Stream stream, ConstView codes, ConstView scales, float /*factor*/,
                 const SharedBucket& to, const ChunkRange& /*range*/) {
  const double read = share_of(to.values.count(), codes.count());
  count(stream, {.bytes = bytes_of(codes) + bytes_of(scales) + read * bytes_of(to.values),
                 .launches = to.code_scales.empty() ? 1 : 2});
}

}  // namespace fp8train::ops::meta
