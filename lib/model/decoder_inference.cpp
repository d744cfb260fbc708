// Passes of a Decoder that train nothing: the loss of a batch, and the logits of the next token.

#include <algorithm>

#include "base/error.h"
#include "model/decoder.h"
#include "ops/pointwise/elementwise.h"

namespace fp8train {

void Decoder::evaluate(const StepContext& step, MicroBatchPass batch, const LossTotals& totals) {
  check(!step.training, "evaluation keeps nothing for backward");
  scaling_.begin_evaluation(step.stream);
  const StepContext context = begin_pass(step);
  ArenaScope scope(*context.scratch);
  const View embedded =
      embeds(batch.chunk) ? embed(context, batch.tokens, 0, *context.scratch) : batch.x;
  const auto like_embedded = [&] {
    return fp8train::allocate(*context.scratch, embedded.dtype, embedded.shape);
  };
  Residual stream = {.x = embedded, .branch = like_embedded(), .sum = {}};
  run_blocks(context, stream, batch, {});
  if (!has_head(batch.chunk)) {
    ops::add(context.stream, stream.x, stream.branch, batch.y);
  } else {
    const View normed = like_embedded();
    use_head(context, ParameterGatherer::kNone);
    Norm::Saved unused;
    final_norm_->forward(context, stream, normed, unused);
    head_->loss(context, normed, reshaped(batch.targets, {batch.targets.count()}), totals);
  }
  scaling_.end_evaluation(step.stream);
}

View Decoder::next_token_logits(const StepContext& step, MicroBatchPass pass,
                                std::vector<KvCache>& caches) {
  check(step.own_rows(1) == 1, "each rank has all rows of a sequence that grows");
  scaling_.begin_evaluation(step.stream);
  const StepContext context = begin_pass(step);
  const int64_t batch = pass.tokens.shape[0];
  const int64_t length = pass.tokens.shape.back();
  check(batch == 1 || length == 1, "several sequences grow by one token at a time");
  const auto of_block = static_cast<size_t>(batch);
  check(!step.training && caches.size() == blocks_.size() * of_block,
        "each block has a cache for each sequence");
  const bool makes_logits = has_head(pass.chunk);
  const View logits = makes_logits ? fp8train::allocate(*context.scratch, plan_.activation,
                                                        {batch, head_->padded_vocabulary()})
                                   : View();
  ArenaScope scope(*context.scratch);
  int64_t first = 0;
  for (size_t i = 0; i < std::min(of_block, caches.size()); ++i) {
    first = std::max(first, caches[i].length);
  }
  const View embedded =
      embeds(pass.chunk) ? embed(context, pass.tokens, first, *context.scratch) : pass.x;
  Residual stream = {.x = embedded,
                     .branch = fp8train::allocate(*context.scratch, embedded.dtype, embedded.shape),
                     .sum = {}};
  run_blocks(context, stream, pass, caches);
  const auto [begin, end] = units_of(pass.chunk);
  for (size_t i = (begin - 1) * of_block; i < (end - 1) * of_block; ++i) {
    caches[i].length += length;
  }
  if (!makes_logits) {
    ops::add(context.stream, stream.x, stream.branch, pass.y);
  } else {
    const View normed =
        fp8train::allocate(*context.scratch, embedded.dtype, {batch, config_.hidden_size});
    use_head(context, ParameterGatherer::kNone);
    Norm::Saved unused;
    const auto last_rows = [&](const View& view) {
      return view.empty() ? view : rows_of(view, length - 1, batch);
    };
    const Residual last = {last_rows(stream.x), last_rows(stream.branch), last_rows(stream.sum)};
    final_norm_->forward(context, last, normed, unused);
    head_->logits(context, normed, logits);
  }
  scaling_.end_evaluation(step.stream);
  return logits;
}

}  // namespace fp8train
