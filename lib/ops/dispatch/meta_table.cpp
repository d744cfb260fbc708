#include "ops/dispatch/meta_table.h"

#include "ops/dispatch/meta_counts.h"

namespace fp8train::ops::meta {
namespace {

void cast(Stream stream, ConstView x, View y) {
  count(stream, bytes_of(x) + bytes_of(y));
}

void add(Stream stream, ConstView a, ConstView b, View y) {
  count(stream, bytes_of(a) + bytes_of(b) + bytes_of(y));
}

void add_bias(Stream stream, View y, ConstView bias) {
  count(stream, 2 * bytes_of(y) + bytes_of(bias));
}

void bias_backward(Stream stream, ConstView dy, View grad, View /*scratch*/) {
  count(stream, {.bytes = bytes_of(dy) + 2 * bytes_of(grad), .launches = 2});
}

void fill(Stream stream, View y, float /*value*/) {
  count(stream, bytes_of(y));
}

void scale_by(Stream stream, View y, const float* /*factor*/) {
  count(stream, 2 * bytes_of(y));
}

void amax(Stream stream, ConstView x, float* /*result*/, bool combine) {
  count(stream, bytes_of(x), "amax", x.count(), combine ? 1 : 2);
}

Arithmetic arithmetic_of(const Gemm& call) {
  const DType type = call.a.matrix.dtype;
  if (size_of(type) == 1) {
    return call.fast_accumulate ? Arithmetic::fp8_fast : Arithmetic::fp8;
  }
  return type == DType::f32 ? Arithmetic::f32 : Arithmetic::bits16;
}

/// Partial sums of blocks are promoted to fp32 in any case.
Arithmetic arithmetic_of(const ScaledGemm& call) {
  const Granularity granularity = call.a.format.granularity;
  const bool promoted =
      granularity == Granularity::block_1x128 || granularity == Granularity::block_128x128;
  return call.fast_accumulate && !promoted ? Arithmetic::fp8_fast : Arithmetic::fp8;
}

/// A bias is cast to the type of the result; to an fp32 sum of FP8 products it is added afterwards.
void add_bias_work(const View& c, const ConstView& bias, bool fp8, OpWork& work) {
  if (bias.empty()) {
    return;
  }
  if (c.dtype != DType::f32) {
    work.launches += 1;
    work.bytes += bytes_of(bias) / 2;
  } else if (fp8) {
    work.launches += 1;
    work.bytes += 2 * bytes_of(c);
  }
  work.bytes += bytes_of(bias);
}

void gemm(Stream stream, const Gemm& call) {
  const int64_t m = call.c.shape[0];
  const int64_t n = call.c.shape[1];
  const int64_t k = call.a.matrix.shape[call.a.transposed ? 0 : 1];
  const double flops =
      2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  const bool narrow = size_of(call.a.matrix.dtype) == 1 && size_of(call.b.matrix.dtype) == 1;
  stream.counters().gemm_flops += flops;
  stream.counters().gemm_flops_8bit += narrow ? flops : 0.0;
  OpWork work = {.bytes = bytes_of(call.a.matrix) + bytes_of(call.b.matrix) +
                          bytes_of(call.c) * (call.beta != 0.0F ? 2 : 1),
                 .flops = flops,
                 .arithmetic = arithmetic_of(call)};
  add_bias_work(call.c, call.bias, narrow, work);
  count(stream, work);
}

/// With scratch the backend multiplies dequantized operands, in two bytes an element.
void scaled_gemm(Stream stream, const ScaledGemm& call) {
  const double k = static_cast<double>(call.a.matrix.codes.shape[1]);
  const double flops = 2.0 * static_cast<double>(call.c.count()) * k;
  const bool native = call.scratch.empty();
  stream.counters().gemm_flops += flops;
  stream.counters().gemm_flops_8bit += native ? flops : 0.0;
  OpWork work = {.bytes = bytes_of(call.c) * (call.beta != 0.0F ? 2 : 1),
                 .launches = native ? 1 : 3,
                 .flops = flops,
                 .arithmetic = native ? arithmetic_of(call) : Arithmetic::bits16};
  for (const GranuleView* operand : {&call.a.matrix, &call.b.matrix}) {
    work.bytes += bytes_of(operand->codes) + bytes_of(operand->scale_inv);
    work.bytes += native ? 0.0 : 2 * 2 * static_cast<double>(operand->codes.count());
  }
  add_bias_work(call.c, call.bias, native, work);
  count(stream, work);
}

/// To write codes a second kernel reads x again, which the first one reads for the statistics.
double recast_bytes(const QuantizeSink& cast, const ConstView& x, const ConstView& statistics) {
  return cast.out.empty() ? 0.0 : bytes_of(x) + bytes_of(statistics);
}
int norm_forward_launches(const QuantizeSink& cast) {
  return cast.out.empty() ? 1 : 2;
}
const char* norm_forward_kernel(const QuantizeSink& cast) {
  return cast.out.empty() ? "norm_forward" : "norm_forward cast";
}

void rms_norm_forward(Stream stream, ConstView x, ConstView weight, float /*eps*/, View y,
                      View rstd, const QuantizeSink& cast) {
  count(stream,
        bytes_of(x) + bytes_of(weight) + bytes_of(y) + bytes_of(rstd) + bytes_of(cast) +
            recast_bytes(cast, x, rstd),
        norm_forward_kernel(cast), x.count(), norm_forward_launches(cast));
}

void rms_norm_backward(Stream stream, ConstView dy, ConstView x, ConstView weight, ConstView rstd,
                       View dx, bool accumulate, View weight_grad, View /*scratch*/) {
  count(stream,
        bytes_of(dy) + bytes_of(x) + bytes_of(weight) + bytes_of(rstd) +
            bytes_of(dx) * (accumulate ? 2 : 1) + 2 * bytes_of(weight_grad),
        "norm_backward", x.count(), 2);
}

void layer_norm_forward(Stream stream, ConstView x, ConstView weight, ConstView bias, float /*eps*/,
                        View y, View mean, View rstd, const QuantizeSink& cast) {
  count(stream,
        bytes_of(x) + bytes_of(weight) + bytes_of(bias) + bytes_of(y) + bytes_of(mean) +
            bytes_of(rstd) + bytes_of(cast) + recast_bytes(cast, x, rstd),
        norm_forward_kernel(cast), x.count(), norm_forward_launches(cast));
}

void layer_norm_backward(Stream stream, ConstView dy, ConstView x, ConstView weight, ConstView mean,
                         ConstView rstd, View dx, bool accumulate, View weight_grad, View bias_grad,
                         View /*scratch*/) {
  count(stream,
        bytes_of(dy) + bytes_of(x) + bytes_of(weight) + bytes_of(mean) + bytes_of(rstd) +
            bytes_of(dx) * (accumulate ? 2 : 1) + 2 * bytes_of(weight_grad) +
            2 * bytes_of(bias_grad),
        "norm_backward", x.count(), bias_grad.empty() ? 2 : 3);
}

/// One read (or write) of a tensor shaped like the queries, or like the keys.
double query_bytes(const AttentionShape& shape, const HeadsView& view) {
  return bytes_of(view, shape.batch * shape.query_length, shape.heads, shape.head_dim);
}
double key_bytes(const AttentionShape& shape, const HeadsView& view) {
  return bytes_of(view, shape.batch * shape.key_length, shape.kv_heads, shape.head_dim);
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

void head_rms_norm_forward(Stream stream, HeadsView x, int64_t rows, int64_t heads,
                           int64_t head_dim, ConstView weight, float /*eps*/, View original,
                           View rstd) {
  count(stream, 2 * bytes_of(x, rows, heads, head_dim) + bytes_of(weight) + bytes_of(original) +
                    bytes_of(rstd));
}

void head_rms_norm_backward(Stream stream, HeadsView dx, int64_t rows, int64_t heads,
                            int64_t head_dim, ConstView original, ConstView weight, ConstView rstd,
                            View weight_grad, View /*scratch*/) {
  count(stream, {.bytes = 2 * bytes_of(dx, rows, heads, head_dim) + bytes_of(original) +
                          bytes_of(weight) + bytes_of(rstd) + 2 * bytes_of(weight_grad),
                 .launches = 2});
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

/// One read of a fp32 table row (and position row) for every token.
double gathered_bytes(const ConstView& rows, const ConstView& positions) {
  return static_cast<double>(rows.count()) * sizeof(float) * (positions.empty() ? 1 : 2);
}

void embedding_forward(Stream stream, ConstView tokens, ConstView /*table*/, ConstView positions,
                       int64_t /*sequence_length*/, int64_t /*position_offset*/, View y) {
  count(stream, bytes_of(tokens) + gathered_bytes(y, positions) + bytes_of(y));
}

void embedding_backward(Stream stream, ConstView tokens, ConstView dy, View /*table_grad*/,
                        View position_grad, int64_t /*sequence_length*/, View /*scratch*/) {
  // The tokens are sorted: a fill and two kernels.
  count(stream, {.bytes = bytes_of(tokens) + bytes_of(dy) + 2 * gathered_bytes(dy, position_grad),
                 .launches = position_grad.empty() ? 4 : 5});
}

void cross_entropy(Stream stream, const CrossEntropy& call) {
  // The gradient takes a second pass over the logits: rows in flight are more than a cache holds.
  count(stream,
        bytes_of(call.logits) * (call.write_gradient ? 3 : 1) + bytes_of(call.targets) +
            bytes_of(call.losses),
        call.write_gradient ? "cross_entropy" : nullptr, call.logits.count());
}

void accumulate_loss(Stream stream, ConstView losses, ConstView targets, double* /*accumulator*/,
                     int64_t* /*count*/) {
  count(stream, bytes_of(losses) + bytes_of(targets) + 4 * sizeof(double));
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

namespace {

OpTable filled() {
  OpTable table = {
      .cast = cast,
      .add = add,
      .add_bias = add_bias,
      .bias_backward = bias_backward,
      .fill = fill,
      .scale_by = scale_by,
      .amax = amax,
      .gemm = gemm,
      .scaled_gemm = scaled_gemm,
      .rms_norm_forward = rms_norm_forward,
      .rms_norm_backward = rms_norm_backward,
      .layer_norm_forward = layer_norm_forward,
      .layer_norm_backward = layer_norm_backward,
      .attention_forward = attention_forward,
      .attention_backward = attention_backward,
      .append_to_cache = append_to_cache,
      .rope = rope,
      .head_rms_norm_forward = head_rms_norm_forward,
      .head_rms_norm_backward = head_rms_norm_backward,
      .swiglu_forward = swiglu_forward,
      .swiglu_backward = swiglu_backward,
      .find_smoothing = find_smoothing,
      .divide_columns = divide_columns,
      .gelu_forward = gelu_forward,
      .gelu_backward = gelu_backward,
      .embedding_forward = embedding_forward,
      .embedding_backward = embedding_backward,
      .cross_entropy = cross_entropy,
      .accumulate_loss = accumulate_loss,
  };
  fill_casts(table);
  fill_optimizer(table);
  fill_wires(table);
  return table;
}

}  // namespace

const OpTable& table() {
  static const OpTable kTable = filled();
  return kTable;
}

}  // namespace fp8train::ops::meta
