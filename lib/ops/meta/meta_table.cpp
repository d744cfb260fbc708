#include "ops/meta/meta_table.h"

#include "ops/meta/counts.h"

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
  count(stream, bytes_of(dy) + 2 * bytes_of(grad));
}

void fill(Stream stream, View y, float /*value*/) {
  count(stream, bytes_of(y));
}

void scale_by(Stream stream, View y, const float* /*factor*/) {
  count(stream, 2 * bytes_of(y));
}

void amax(Stream stream, ConstView x, float* /*result*/, bool /*combine*/) {
  count(stream, bytes_of(x));
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
  count(stream, bytes_of(call.a.matrix) + bytes_of(call.b.matrix) + bytes_of(call.bias) +
                    bytes_of(call.c) * (call.beta != 0.0F ? 2 : 1));
}

void scaled_gemm(Stream stream, const ScaledGemm& call) {
  const double k = static_cast<double>(call.a.matrix.codes.shape[1]);
  const double flops = 2.0 * static_cast<double>(call.c.count()) * k;
  // With scratch the backend multiplies dequantized operands.
  stream.counters().gemm_flops += flops;
  stream.counters().gemm_flops_8bit += call.scratch.empty() ? flops : 0.0;
  double bytes = bytes_of(call.bias) + bytes_of(call.c) * (call.beta != 0.0F ? 2 : 1);
  for (const GranuleView* operand : {&call.a.matrix, &call.b.matrix}) {
    bytes += bytes_of(operand->codes) + bytes_of(operand->scale_inv);
  }
  count(stream, bytes);
}

void rms_norm_forward(Stream stream, ConstView x, ConstView weight, float /*eps*/, View y,
                      View rstd, const QuantizeSink& cast) {
  count(stream, bytes_of(x) + bytes_of(weight) + bytes_of(y) + bytes_of(rstd) + bytes_of(cast));
}

void rms_norm_backward(Stream stream, ConstView dy, ConstView x, ConstView weight, ConstView rstd,
                       View dx, bool accumulate, View weight_grad, View /*scratch*/) {
  count(stream, bytes_of(dy) + bytes_of(x) + bytes_of(weight) + bytes_of(rstd) +
                    bytes_of(dx) * (accumulate ? 2 : 1) + 2 * bytes_of(weight_grad));
}

void layer_norm_forward(Stream stream, ConstView x, ConstView weight, ConstView bias, float /*eps*/,
                        View y, View mean, View rstd, const QuantizeSink& cast) {
  count(stream, bytes_of(x) + bytes_of(weight) + bytes_of(bias) + bytes_of(y) + bytes_of(mean) +
                    bytes_of(rstd) + bytes_of(cast));
}

void layer_norm_backward(Stream stream, ConstView dy, ConstView x, ConstView weight, ConstView mean,
                         ConstView rstd, View dx, bool accumulate, View weight_grad, View bias_grad,
                         View /*scratch*/) {
  count(stream, bytes_of(dy) + bytes_of(x) + bytes_of(weight) + bytes_of(mean) + bytes_of(rstd) +
                    bytes_of(dx) * (accumulate ? 2 : 1) + 2 * bytes_of(weight_grad) +
                    2 * bytes_of(bias_grad));
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
  stream.counters().attention_flops += attention_forward_flops(shape);
  count(stream, query_bytes(shape, q) + key_bytes(shape, k) + key_bytes(shape, v) +
                    query_bytes(shape, out) + bytes_of(log_sum_exp));
}

void attention_backward(Stream stream, const AttentionShape& shape, HeadsView q, HeadsView k,
                        HeadsView v, HeadsView out, View log_sum_exp, HeadsView dout, HeadsView dq,
                        HeadsView dk, HeadsView dv, View /*scratch*/) {
  stream.counters().attention_flops += attention_backward_flops(shape);
  count(stream, query_bytes(shape, q) + key_bytes(shape, k) + key_bytes(shape, v) +
                    query_bytes(shape, out) + bytes_of(log_sum_exp) + query_bytes(shape, dout) +
                    query_bytes(shape, dq) + key_bytes(shape, dk) + key_bytes(shape, dv));
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
  count(stream, 2 * bytes_of(dx, rows, heads, head_dim) + bytes_of(original) + bytes_of(weight) +
                    bytes_of(rstd) + 2 * bytes_of(weight_grad));
}

void swiglu_forward(Stream stream, ConstView gate_up, View y, const QuantizeSink& cast,
                    ConstView smoothing) {
  count(stream, bytes_of(gate_up) + bytes_of(smoothing) + bytes_of(y) + bytes_of(cast));
}

void find_smoothing(Stream stream, ConstView gate_up, View scale) {
  count(stream, bytes_of(gate_up) / 2 + bytes_of(scale));
}

void divide_columns(Stream stream, ConstView x, ConstView scale, View y, bool add) {
  count(stream, bytes_of(x) + bytes_of(scale) + bytes_of(y) * (add ? 2 : 1));
}

void swiglu_backward(Stream stream, ConstView dy, ConstView gate_up, View d_gate_up,
                     const QuantizeSink& cast) {
  count(stream, bytes_of(dy) + bytes_of(gate_up) + bytes_of(d_gate_up) + bytes_of(cast));
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
  count(stream, bytes_of(tokens) + bytes_of(dy) + 2 * gathered_bytes(dy, position_grad));
}

void cross_entropy(Stream stream, const CrossEntropy& call) {
  count(stream, bytes_of(call.logits) * (call.write_gradient ? 2 : 1) + bytes_of(call.targets) +
                    bytes_of(call.losses));
}

void accumulate_loss(Stream stream, ConstView losses, ConstView targets, double* /*accumulator*/,
                     int64_t* /*count*/) {
  count(stream, bytes_of(losses) + bytes_of(targets) + 4 * sizeof(double));
}

void sum_of_squares(Stream stream, ConstView x, double* /*accumulator*/, View /*scratch*/,
                    DType /*read_as*/) {
  count(stream, bytes_of(x) + 2 * sizeof(double));
}

void prepare_step(Stream stream, StepControl* /*control*/, float /*max_norm*/,
                  const LossScaling& /*scaling*/) {
  count(stream, 2 * sizeof(StepControl));
}

double stored_bytes(const StoredTensor& tensor) {
  return bytes_of(tensor.codes) + bytes_of(tensor.scales);
}

void store(Stream stream, const Store& call) {
  const double passes = stored_scales(call.to.format, 1) == 2 ? 2 : 1;  // one for the amax
  count(stream, passes * (bytes_of(call.x) + (call.add ? stored_bytes(call.to) : 0.0)) +
                    stored_bytes(call.to));
}

void read_stored(Stream stream, const StoredTensor& x, View y) {
  count(stream, stored_bytes(x) + bytes_of(y));
}

void update_auto_scale(Stream stream, ConstView codes, AutoScale* /*automatic*/,
                       const int32_t* /*skip*/) {
  count(stream, bytes_of(codes) + 2 * sizeof(AutoScale));
}

/// Of a tensor, what lies in chunks of `covered` elements.
double share_of(int64_t count, int64_t covered) {
  return count <= covered ? 1.0 : static_cast<double>(covered) / static_cast<double>(count);
}

void update_auto_scales(Stream stream, const AutoScale* /*of_ranks*/, int64_t ranks,
                        AutoScale* /*scales*/, int64_t scales, const int32_t* /*skip*/) {
  count(stream, static_cast<double>((ranks + 2) * scales) * sizeof(AutoScale));
}

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
  count(stream, bytes_of(bucket.values) + bytes_of(bucket.tensor_of_group) + bytes_of(amax));
}

void shared_scales(Stream stream, ConstView amax, const TensorFormat& /*format*/,
                   float /*pre_scale*/, View scales, ConstView /*automatic*/) {
  count(stream, bytes_of(amax) + bytes_of(scales));
}

void pack_shared(Stream stream, const SharedBucket& bucket, ConstView scales, View codes,
                 const ChunkPlaces& /*places*/) {
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
                 const SharedBucket& to, const ChunkPlaces& /*places*/) {
  count(stream, bytes_of(codes) + bytes_of(scales) +
                    share_of(to.values.count(), codes.count()) * bytes_of(to.values));
}

void compress(Stream stream, ConstView x, const CompressedView& out) {
  count(stream, bytes_of(x) + bytes_of(out.codes) + bytes_of(out.scale_inv));
}

void decompress(Stream stream, const CompressedView& x, View y) {
  count(stream, bytes_of(x.codes) + bytes_of(x.scale_inv) + bytes_of(y));
}

void adamw(Stream stream, const AdamW& call, const StepControl* /*control*/) {
  count(stream, 2 * stored_bytes(call.weight) + stored_bytes(call.gradient) +
                    2 * stored_bytes(call.moment1) + 2 * stored_bytes(call.moment2) +
                    bytes_of(call.copy) + bytes_of(call.cast));
}

void adamw_amax(Stream stream, const AdamW& call, const StepControl* /*control*/) {
  count(stream, stored_bytes(call.weight) + stored_bytes(call.gradient) +
                    stored_bytes(call.moment1) + stored_bytes(call.moment2));
}

void sgd(Stream stream, const Sgd& call, const StepControl* /*control*/) {
  count(stream, 2 * bytes_of(call.weight) + bytes_of(call.gradient) + 2 * bytes_of(call.momentum) +
                    bytes_of(call.copy));
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
      .sum_of_squares = sum_of_squares,
      .prepare_step = prepare_step,
      .store = store,
      .read_stored = read_stored,
      .update_auto_scale = update_auto_scale,
      .update_auto_scales = update_auto_scales,
      .compress = compress,
      .decompress = decompress,
      .adamw = adamw,
      .adamw_amax = adamw_amax,
      .sgd = sgd,
      .pack_wire = pack_wire,
      .sum_wire = sum_wire,
      .unpack_wire = unpack_wire,
      .combine_ranks = combine_ranks,
      .shared_amax = shared_amax,
      .shared_scales = shared_scales,
      .pack_shared = pack_shared,
      .sum_shared = sum_shared,
      .count_largest = count_largest,
      .read_shared = read_shared,
  };
  fill_casts(table);
  return table;
}

}  // namespace

const OpTable& table() {
  static const OpTable kTable = filled();
  return kTable;
}

}  // namespace fp8train::ops::meta
