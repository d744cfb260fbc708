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

/// Bytes that a call writes: of codes, or else those of the tensors.
OpBytes written(const AttentionCodes& codes, double bytes) {
  return codes.cast.out.empty() ? bytes : bytes_of(codes.cast);
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

void attention_forward(Stream stream, const AttentionForward& call) {
  const double flops = attention_forward_flops(call.shape);
  stream.counters().attention_flops += flops;
  count(stream, {.bytes = query_bytes(call.shape, call.q) + key_bytes(call.shape, call.k) +
                          key_bytes(call.shape, call.v) + bytes_of(call.log_sum_exp) +
                          written(call.codes, query_bytes(call.shape, call.out)),
                 .flops = flops,
                 .arithmetic = call.codes.is_on() ? Arithmetic::attention_forward_fp8
                                                  : Arithmetic::attention_forward});
}

void attention_backward(Stream stream, const AttentionBackward& call) {
  const double flops = attention_backward_flops(call.shape);
  stream.counters().attention_flops += flops;
  count(stream, {.bytes = query_bytes(call.shape, call.q) + key_bytes(call.shape, call.k) +
                          key_bytes(call.shape, call.v) + query_bytes(call.shape, call.out) +
                          bytes_of(call.log_sum_exp) + query_bytes(call.shape, call.dout) +
                          written(call.codes, query_bytes(call.shape, call.dq) +
                                                  key_bytes(call.shape, call.dk) +
                                                  key_bytes(call.shape, call.dv)),
                 .launches = 3,
                 .flops = flops,
                 .arithmetic = call.codes.is_on() ? Arithmetic::attention_backward_fp8
                                                  : Arithmetic::attention_backward});
}

void copy_rows(Stream stream, const RowCopy& call) {
  const auto& [outer, middle, inner] = call.extents;
  count(stream, 2.0 * static_cast<double>(outer * middle * inner * call.width) *
                    static_cast<double>(size_of(call.dtype)));
}

void rope(Stream stream, const Rope& call) {
  // The rows of `length` positions are read from the two tables, fp32 [max_positions, D / 2].
  const double table_bytes = static_cast<double>(call.length * call.head_dim) * sizeof(float);
  count(stream,
        2 * bytes_of(call.x, call.batch * call.length, call.heads, call.head_dim) + table_bytes);
}

std::optional<size_t> attention_backward_workspace(Stream stream, const AttentionBackward& call) {
  const std::optional<Stream>& planned = planned_stream(stream);
  return planned ? ops::attention_backward_workspace(*planned, call) : std::nullopt;
}

std::string attention_kernels(Stream /*stream*/) {
  return {};
}

}  // namespace fp8train::ops::meta
