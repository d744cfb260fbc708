// Attention whose own products are in FP8 (AttentionPlan).

#include "base/error.h"
#include "nn/attention.h"

namespace fp8train {
namespace {

/// A tensor with one scale, which one GEMM reads.
QuantizedInput one_way(ScalingState& scaling, const std::string& layer, const char* name,
                       const TensorFormat& format) {
  return {scaling,
          layer,
          {.name = name, .format = format, .other = format, .cut = {Cut::columns, {}}},
          {}};
}

ops::KernelCodes in_kernel(const StepContext& context, const ScalingSlot& slot) {
  return {slot.format.dtype, slot.scale, slot.scale_inv, context.training ? slot.amax : nullptr};
}

}  // namespace

AttentionScaling::AttentionScaling(const AttentionPlan& plan, const std::string& layer,
                                   bool in_evaluation, ScalingState& scaling)
    : qkv(scaling, layer,
          {.name = "qkv", .format = plan.qkv, .other = plan.qkv, .cut = {Cut::columns, {}}}, {},
          in_evaluation),
      out(one_way(scaling, layer, "out", plan.out)),
      dout(one_way(scaling, layer, "dout", plan.dout)),
      dqkv(one_way(scaling, layer, "dqkv", plan.dqkv)),
      probabilities(scaling.add(layer, "p", plan.probabilities)),
      dscores(plan.dscores.is_scaled() ? scaling.add(layer, "ds", plan.dscores) : nullptr) {}

bool Attention::reads_codes(const StepContext& context, std::span<const KvCache> caches) const {
  return scaling_ && caches.empty() && scaling_->qkv.reads_codes(context, Along::rows);
}

/// Writes saved.attended and saved.log_sum_exp. An output that has a scale is what its codes say.
void Attention::codes_forward(const StepContext& context, int64_t batch, Arena& of_codes,
                              Saved& saved) const {
  check(context.context_ranks == nullptr, "attention in FP8 has whole sequences");
  ArenaScope scope(*context.scratch);
  const View& attended = saved.attended;
  const int64_t length = attended.shape.rows() / batch;
  const QuantizedInput::Memory memory = {&of_codes, nullptr};
  saved.projected_codes =
      scaling_->qkv.operands(context, saved.projected, memory).along_rows.tensor;
  const View& codes = saved.projected_codes.codes;
  const bool is_cast = scaling_->out.slot(Along::rows) != nullptr;
  const InputTensor out =
      is_cast ? scaling_->out.allocate(context, attended.dtype, attended.shape, memory) : attended;
  const auto& [heads, kv_heads, head_dim] = dimensions_;
  ops::attention_forward(context.stream,
                         {.shape = shape(dimensions_, batch, length, length),
                          .q = slice(codes, 0, length),
                          .k = slice(codes, heads, length),
                          .v = slice(codes, heads + kv_heads, length),
                          .out = slice(out.plain, 0, length),
                          .log_sum_exp = saved.log_sum_exp,
                          .document_starts = context.document_starts,
                          .codes = {.qkv_inv = saved.projected_codes.tensor_scale,
                                    .probabilities = in_kernel(context, *scaling_->probabilities),
                                    .cast = out.cast}});
  if (is_cast) {
    saved.attended_codes = scaling_->out.operands(context, out, memory).along_rows.tensor;
    ops::dequantize(context.stream, saved.attended_codes, attended);
  }
}

/// Of probabilities it reads the scale of the forward pass, and the output as that pass has it.
void Attention::codes_backward(const StepContext& context, const View& d_attended,
                               const View& d_projected, int64_t batch, const Saved& saved) const {
  ArenaScope scope(*context.scratch);
  const auto& [heads, kv_heads, head_dim] = dimensions_;
  const int64_t length = d_projected.shape.rows() / batch;
  const QuantizedInput::Memory memory = {context.scratch, nullptr};
  const Encoded dout = scaling_->dout.operands(context, d_attended, memory).along_rows.tensor;
  const View& codes = saved.projected_codes.codes;
  const bool out_in_codes = !saved.attended_codes.empty();
  const bool is_cast = scaling_->dqkv.slot(Along::rows) != nullptr;
  const InputTensor dqkv =
      is_cast ? scaling_->dqkv.allocate(context, d_projected.dtype, d_projected.shape, memory)
              : d_projected;
  StepContext forward = context;
  forward.training = false;
  ops::AttentionBackward call = {
      .shape = shape(dimensions_, batch, length, length),
      .q = slice(codes, 0, length),
      .k = slice(codes, heads, length),
      .v = slice(codes, heads + kv_heads, length),
      .out = slice(out_in_codes ? saved.attended_codes.codes : saved.attended, 0, length),
      .log_sum_exp = saved.log_sum_exp,
      .dout = slice(dout.codes, 0, length),
      .dq = slice(dqkv.plain, 0, length),
      .dk = slice(dqkv.plain, heads, length),
      .dv = slice(dqkv.plain, heads + kv_heads, length),
      .document_starts = context.document_starts,
      .codes = {.qkv_inv = saved.projected_codes.tensor_scale,
                .out_inv = saved.attended_codes.tensor_scale,
                .dout_inv = dout.tensor_scale,
                .probabilities = in_kernel(forward, *scaling_->probabilities),
                .dscores = in_kernel(context, *scaling_->dscores),
                .cast = dqkv.cast}};
  call.shape.deterministic = context.deterministic;
  const int64_t scratch = ops::attention_backward_scratch(context.stream, call);
  call.scratch = allocate(*context.scratch, DType::f32, {scratch});
  ops::attention_backward(context.stream, call);
  if (is_cast) {
    ops::dequantize(context.stream,
                    scaling_->dqkv.operands(context, dqkv, memory).along_rows.tensor, d_projected);
  }
}

}  // namespace fp8train
