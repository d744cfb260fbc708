#include "ops/attention/attention_flops.h"
#include "ops/dispatch/meta_counts.h"

namespace fp8train::ops::meta {
namespace {

/// One read (or write) of a tensor shaped like the queries, or like the keys.
double query_bytes(const AttentionShape& shape, const HeadsView& view) {
  return bytes_of(view, shape.batch * shape.query_length, shape.heads, shape.head_dim);
}

double key_bytes(const AttentionShape& shape, const HeadsView& view) {
  return bytes_of(view, shape.batch * shape.key_length, shape.kv_heads, shape.head_dim);
}

}  // namespace

double attention_forward_flops(const AttentionShape& shape) {
  const double queries = static_cast<double>(shape.query_length);
  const double keys = static_cast<double>(shape.key_length);
  const double pairs = queries * (keys - queries) + queries * queries / 2;
  return 2.0 * 2.0 * static_cast<double>(shape.batch * shape.heads * shape.head_dim) * pairs;
}

double attention_backward_flops(const AttentionShape& shape) {
  return 2.5 * attention_forward_flops(shape);
}

void attention_forward(Stream stream, const AttentionShape& shape, HeadsView q, HeadsView k,
                       HeadsView v, HeadsView out, View log_sum_exp) {
  const double flops = attention_forward_flops(shape);
  stream.counters().attention_flops += flops;
  count(stream, {.bytes = query_bytes(shape, q) + key_bytes(shape, k) + key_bytes(shape, v) +
                          query_bytes(shape, out) + bytes_of(log_sum_exp),
                 .flops = flops,
                 .arithmetic = Arithmetic::attention_forward});
}

void attention_backward(Stream stream, const AttentionShape& shape, HeadsView q, HeadsView k,
                        HeadsView v, HeadsView out, View log_sum_exp, HeadsView dout, HeadsView dq,
                        HeadsView dk, HeadsView dv, View /*scratch*/) {
  const double flops = attention_backward_flops(shape);
  stream.counters().attention_flops += flops;
  count(stream,
        {.bytes = query_bytes(shape, q) + key_bytes(shape, k) + key_bytes(shape, v) +
                  query_bytes(shape, out) + bytes_of(log_sum_exp) + query_bytes(shape, dout) +
                  query_bytes(shape, dq) + key_bytes(shape, dk) + key_bytes(shape, dv),
         .launches = 3,
         .flops = flops,
         .arithmetic = Arithmetic::attention_backward});
}

HeadsView append_to_cache(Stream stream, HeadsView rows, View cache, int64_t batch, int64_t length,
                          int64_t width, int64_t /*past*/) {
  count(stream, 2.0 * static_cast<double>(batch * length * width) *
                    static_cast<double>(size_of(rows.dtype)));
  return {cache.data, cache.dtype, width, cache.shape[1]};
}

void rope(Stream stream, HeadsView x, int64_t batch, int64_t length, int64_t heads,
          int64_t head_dim, ConstView /*cosines*/, ConstView /*sines*/, int64_t /*position_offset*/,
          bool /*inverse*/) {
  // Of the two tables, fp32 [max_positions, D / 2], the rows of `length` positions are read.
  const double table_bytes = static_cast<double>(length * head_dim) * sizeof(float);
  count(stream, 2 * bytes_of(x, batch * length, heads, head_dim) + table_bytes);
}

std::optional<size_t> attention_backward_workspace(Stream stream, const AttentionShape& shape,
                                                   HeadsView q, HeadsView k, HeadsView v,
                                                   HeadsView out, HeadsView dout, HeadsView dq,
                                                   HeadsView dk, HeadsView dv) {
  const std::optional<Stream>& planned = planned_stream(stream);
  return planned
             ? ops::attention_backward_workspace(*planned, shape, q, k, v, out, dout, dq, dk, dv)
             : std::nullopt;
}

std::string attention_kernels(Stream /*stream*/) {
  return {};
}

}  // namespace fp8train::ops::meta
