// The rows of experts between ranks that have different ones.

#include <cstdint>
#include <iterator>

#include "nn/moe.h"
#include "ops/attention/copy_rows.h"
#include "ops/cast/quantize.h"
#include "ops/cast/scale_blocks.h"

namespace fp8train {

/// From blocks of rows by the rank of their tokens, and then by expert, to blocks by expert, and
/// then by rank; or back.
void Moe::copy_blocks(const StepContext& context, const View& by_rank, const View& by_expert,
                      bool to_experts) const {
  const int64_t ranks = context.expert_ranks->ranks();
  const int64_t experts = std::ssize(experts_);
  const int64_t width = by_rank.shape.back();
  const int64_t rows = by_rank.shape.rows() / (ranks * experts);
  ops::copy_between(context.stream, {by_rank.data, {experts * rows * width, rows * width, width}},
                    {by_expert.data, {rows * width, ranks * rows * width, width}},
                    {.dtype = by_rank.dtype, .extents = {ranks, experts, rows}, .width = width},
                    to_experts);
}

/// `received` may be `sent`.
void Moe::swap_to_experts(const StepContext& context, const View& sent,
                          const View& received) const {
  ArenaScope scope(*context.scratch);
  const View by_rank = allocate(*context.scratch, sent.dtype, sent.shape);
  context.expert_ranks->swap(context, sent, by_rank);
  copy_blocks(context, by_rank, received, true);
}

/// Replaces the rows of all experts for this rank's tokens, [E * capacity, C], by those of its
/// experts for all ranks' tokens.
void Moe::send(const StepContext& context, const View& rows) const {
  if (context.expert_ranks == nullptr) {
    return;
  }
  if (dispatch_.in_forward(context)) {
    return send_codes(context, rows);
  }
  swap_to_experts(context, rows, rows);
}

/// The same in codes, of which the casts of experts make their own.
void Moe::send_codes(const StepContext& context, const View& rows) const {
  ArenaScope scope(*context.scratch);
  const Shape matrix = {rows.shape.rows(), rows.shape.back()};
  const ops::ScaleGrid grid =
      ops::scale_grid(dispatch_.format.block, matrix.rows(), matrix.back(), ScaleLayout::row_major);
  const auto memory = [&] {
    const View codes = allocate(*context.scratch, dispatch_.format.dtype, matrix);
    return Encoded(
        codes, dispatch_.format,
        allocate(*context.scratch, DType::f32, {matrix.rows(), grid.count / matrix.rows()}));
  };
  const Encoded sent = memory();
  const Encoded received = memory();
  ops::quantize(context.stream, rows, {sent}, nullptr, nullptr);
  swap_to_experts(context, sent.codes, received.codes);
  swap_to_experts(context, sent.scales, received.scales);
  ops::dequantize(context.stream, received, rows);
}

void Moe::send_back(const StepContext& context, const View& rows) const {
  if (context.expert_ranks != nullptr) {
    ArenaScope scope(*context.scratch);
    const View sent = allocate(*context.scratch, rows.dtype, rows.shape);
    copy_blocks(context, sent, rows, false);
    context.expert_ranks->swap(context, sent, rows);
  }
}

}  // namespace fp8train
