#include "ops/dispatch/meta_counts.h"

namespace fp8train::ops::meta {
namespace {

/// Bytes of a row of fp32 of each of the tables for every row.
OpBytes gathered_bytes(const ConstView& rows, const ConstView& table, const ConstView& positions) {
  return static_cast<double>(rows.count()) * sizeof(float) *
         ((table.empty() ? 0 : 1) + (positions.empty() ? 0 : 1));
}

}  // namespace

void cast(Stream stream, ConstView x, View y) {
  count(stream, bytes_of(x) + bytes_of(y));
}

void add(Stream stream, ConstView a, ConstView b, View y) {
  count(stream, bytes_of(a) + bytes_of(b) + bytes_of(y));
}

void add_bias(Stream stream, View y, ConstView bias) {
  count(stream, 2 * bytes_of(y) + bytes_of(bias));
}

void bias_backward(Stream stream, ConstView dy, View grad, View /*scratch*/, bool overwrite) {
  count(stream, {.bytes = bytes_of(dy) + (overwrite ? 1 : 2) * bytes_of(grad), .launches = 2});
}

void copy_columns(Stream stream, ConstView /*x*/, int64_t /*first*/, View y) {
  count(stream, 2 * bytes_of(y));
}

void add_columns(Stream stream, const AddColumns& call) {
  const Shape part = {call.y.shape.rows(), call.columns};
  const auto bytes = [&](DType dtype) { return bytes_of(View{nullptr, dtype, part}); };
  count(stream, bytes(call.x.dtype) + (call.overwrites ? 1 : 2) * bytes(call.y.dtype));
}

void fill(Stream stream, View y, float /*value*/) {
  count(stream, bytes_of(y));
}

void scale_by(Stream stream, View y, const float* /*factor*/) {
  count(stream, 2 * bytes_of(y));
}

void swiglu_forward(Stream stream, ConstView gate_up, View y, const QuantizeSink& cast,
                    ConstView smoothing, bool silu_in_codes) {
  count(stream, bytes_of(gate_up) + bytes_of(smoothing) + bytes_of(y) + bytes_of(cast),
        silu_in_codes  ? "swiglu_forward encoded"
        : cast.empty() ? "swiglu_forward"
                       : "swiglu_forward cast",
        gate_up.count() / 2);
}

void find_smoothing(Stream stream, ConstView gate_up, View scale) {
  count(stream, bytes_of(gate_up) / 2 + bytes_of(scale));
}

void divide_columns(Stream stream, ConstView x, ConstView scale, View y, bool add) {
  count(stream, bytes_of(x) + bytes_of(scale) + bytes_of(y) * (add ? 2 : 1));
}

void swiglu_backward(Stream stream, ConstView dy, ConstView gate_up, View d_gate_up,
                     const QuantizeSink& cast, bool silu_in_codes) {
  count(stream, bytes_of(dy) + bytes_of(gate_up) + bytes_of(d_gate_up) + bytes_of(cast),
        silu_in_codes  ? "swiglu_backward encoded"
        : cast.empty() ? "swiglu_backward"
                       : "swiglu_backward cast",
        dy.count());
}

void gelu_forward(Stream stream, ConstView x, View y, const QuantizeSink& cast) {
  count(stream, bytes_of(x) + bytes_of(y) + bytes_of(cast));
}

void gelu_backward(Stream stream, ConstView dy, ConstView x, View dx, const QuantizeSink& cast) {
  count(stream, bytes_of(dy) + bytes_of(x) + bytes_of(dx) + bytes_of(cast));
}

void embedding_forward(Stream stream, const EmbeddingForward& call) {
  count(stream, bytes_of(call.tokens) + gathered_bytes(call.y, call.table, call.positions) +
                    bytes_of(call.y));
}

void embedding_backward(Stream stream, const EmbeddingBackward& call) {
  const OpBytes gradients = 2 * gathered_bytes(call.dy, call.table_grad, call.position_grad);
  // The tokens are sorted: a fill and two kernels.
  count(stream,
        {.bytes = bytes_of(call.tokens) + bytes_of(call.dy) + gradients,
         .launches = (call.table_grad.empty() ? 0 : 4) + (call.position_grad.empty() ? 0 : 1)});
}

}  // namespace fp8train::ops::meta
