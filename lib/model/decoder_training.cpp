// The training step of a Decoder: forward, head with loss, backward.

#include <algorithm>
#include <array>

#include "base/trace.h"
#include "model/decoder.h"
#include "model/step_part.h"
#include "nn/partial_gradient.h"
#include "ops/pointwise/elementwise.h"
#include "ops/pointwise/embedding.h"

namespace fp8train {

void Decoder::train_micro_batch(const StepContext& step, ConstView tokens, ConstView targets,
                                const LossTotals& totals, const float* loss_scale,
                                float gradient_factor) {
  StepContext context = begin_pass(step);
  context.loss_gradient = {loss_scale, gradient_factor};
  ArenaScope saved_scope(*context.saved);
  ArenaScope scratch_scope(*context.scratch);
  const View gradient = fp8train::allocate(*context.scratch, plan_.activation,
                                           {context.own_rows(tokens.count()), config_.hidden_size});
  MicroBatchPass pass = {.tokens = tokens, .targets = targets};
  const Residual last = forward(context, pass, gradient);
  run_head(context, last, targets, totals, gradient, context.loss_gradient);
  backward(context, pass, gradient);
}

void Decoder::forward_part(const StepContext& step, MicroBatchPass& pass) {
  const StepContext context = begin_pass(step, ScalingPass::forward, pass.chunk);
  ArenaScope scratch_scope(*context.scratch);
  const View branch = fp8train::allocate(*context.scratch, pass.y.dtype, pass.y.shape);
  const Residual last = forward(context, pass, branch);
  ops::add(context.stream, last.x, last.branch, pass.y);
}

void Decoder::backward_part(const StepContext& step, MicroBatchPass& pass, const View& gradient,
                            const LossTotals& totals, const GradientScale& scale) {
  StepContext context = begin_pass(step, ScalingPass::backward, pass.chunk);
  context.loss_gradient = scale;
  ArenaScope scratch_scope(*context.scratch);
  if (has_head(pass.chunk)) {
    const Residual last = {.x = pass.y, .branch = {}, .sum = {}};
    StepContext at_once = context;  // it makes its logits in chunks
    at_once.held = nullptr;
    run_head(at_once, last, pass.targets, totals, gradient, scale);
  }
  backward(context, pass, gradient);
}

/// `branch` is memory for the branches of the residual stream; it is free again after the norm that
/// follows.
Residual Decoder::forward(const StepContext& context, MicroBatchPass& pass, const View& branch) {
  const TraceSpan span(name_of(StepPart::forward));
  Arena& arena = keeps_block_inputs_ ? *context.saved : *context.scratch;
  const View x = embeds(pass.chunk) ? embed(context, pass.tokens, 0, arena) : pass.x;
  Residual stream = {.x = x, .branch = branch, .sum = {}};
  run_blocks(context, stream, pass, {});
  return stream;
}

/// Runs the head forward and backward at once: it makes its logits in chunks and stores none.
void Decoder::run_head(const StepContext& context, const Residual& last, ConstView targets,
                       const LossTotals& totals, const View& gradient, const GradientScale& scale) {
  const TraceSpan span(name_of(StepPart::head));
  const View normed = fp8train::allocate(*context.saved, gradient.dtype, gradient.shape);
  use_head(context, blocks_.size());
  begin_gradients(context, blocks_.size() + 1);
  if (tied()) {
    begin_gradients(context, 0);
  }
  Norm::Saved norm_saved;
  final_norm_->forward(context, last, normed, norm_saved);
  ArenaScope head_scope(*context.scratch);
  const View d_normed = fp8train::allocate(*context.scratch, gradient.dtype, gradient.shape);
  head_->loss(context, normed, reshaped(targets, {targets.count()}), totals, d_normed, scale);
  final_norm_->backward(context, d_normed, gradient, false, norm_saved);
}

void Decoder::complete(const StepContext& context, size_t unit) const {
  if (context.listener != nullptr) {
    const std::vector<size_t> begins = parameters_.unit_begins();
    context.listener->gradients_complete(begins[unit], begins[unit + 1]);
  }
}

/// Runs backward through everything but the head, whose gradients are complete.
void Decoder::backward(const StepContext& context, MicroBatchPass& pass, const View& gradient) {
  const TraceSpan span(name_of(StepPart::backward));
  if (has_head(pass.chunk)) {
    complete(context, blocks_.size() + 1);
  }
  const auto [first, end] = units_of(pass.chunk);
  const size_t last = std::max(first_trained_, first);
  for (size_t unit = end; unit-- > last;) {
    use(context, unit, unit > last ? unit - 1 : ParameterGatherer::kNone);
    begin_gradients(context, unit);
    const auto [offload, number] = offload_of(context, unit);
    if (offload != nullptr) {
      offload->begin_backward(context.stream, number);
    }
    blocks_[unit - 1].backward(context, gradient, pass.tokens.shape[0], pass.saved[unit - first]);
    if (offload != nullptr) {
      offload->end_backward(context.stream, number);
    }
    complete(context, unit);
  }
  if (pass.chunk > 0) {
    return;
  }
  const bool trains_positions = positions_ != nullptr && positions_->trained;
  if (part_.embeds && (embedding_->trained || trains_positions)) {
    if (!tied() || head_ == nullptr) {
      begin_gradients(context, 0);
    }
    add_embedding_gradients(context, pass.tokens, gradient);
  }
  complete(context, 0);  // of a part that does not embed: the head's part of a tied table
}

void Decoder::add_weight_gradients(const StepContext& step, const MicroBatchPass& pass) const {
  const TraceSpan span(name_of(StepPart::backward));
  ArenaScope scratch_scope(*step.scratch);
  if (has_head(pass.chunk)) {
    complete(step, blocks_.size() + 1);
  }
  const auto [first, end] = units_of(pass.chunk);
  for (size_t unit = end; unit-- > std::max(first_trained_, first);) {
    blocks_[unit - 1].add_weight_gradients(step, pass.saved[unit - first]);
    complete(step, unit);
  }
  if (pass.chunk == 0) {
    complete(step, 0);
  }
}

void Decoder::add_embedding_gradients(const StepContext& context, ConstView tokens,
                                      const View& gradient) const {
  ops::EmbeddingBackward call = {
      .tokens = reshaped(tokens, {tokens.count()}),
      .dy = gradient,
      .table_grad = embedding_->trained ? embedding_->gradient : View{},
      .position_grad = {},
      .sequence_length = tokens.shape.back(),
      .scratch = fp8train::allocate(*context.scratch, DType::i32, {2 * tokens.count()}),
      .document_starts = context.starts_of_rows()};
  const bool trains_positions = positions_ != nullptr && positions_->trained;
  if (trains_positions && !context.divides_sums()) {
    call.position_grad = positions_->gradient;
  }
  if (context.tensor_ranks != nullptr && embedding_->trained) {
    const View whole =
        fp8train::allocate(*context.scratch, gradient.dtype, {tokens.count(), config_.hidden_size});
    context.tensor_ranks->gather(context, gradient, whole);
    call.dy = whole;
    call.first_token = embedding_->sharding.runs.front().begin;
  }
  if (embedding_->trained || !call.position_grad.empty()) {
    ops::embedding_backward(context.stream, call);
  }
  if (!trains_positions || !context.divides_sums()) {
    return;
  }
  call.table_grad = {};
  const int64_t rows = gradient.shape.rows();
  const int64_t first_row =
      context.tensor_ranks == nullptr ? 0 : rows * context.tensor_ranks->rank();
  PartialGradients<1>(context, {positions_})
      .add(rows, [&](const SumRange& range, const std::array<View, 1>& gradients, bool) {
        ops::fill(context.stream, gradients[0], 0.0F);
        call.dy = rows_of(gradient, range.first, range.count);
        call.first_row = first_row + range.first;
        call.position_grad = gradients[0];
        ops::embedding_backward(context.stream, call);
      });
}

}  // namespace fp8train
