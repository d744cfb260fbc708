// Passes of a Decoder that train nothing: the loss of a batch, and the logits of the next token.

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
  run_blocks(context, stream, batch, nullptr);
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

View Decoder::next_token_logits(const StepContext& step, ConstView tokens,
                                std::vector<KvCache>& caches) {
  check(!step.training && caches.size() == blocks_.size(), "one cache per layer");
  check(part_.is_whole(), "a part of a model has no logits");
  scaling_.begin_evaluation(step.stream);
  const StepContext context = begin_pass(step);
  const int64_t batch = tokens.shape[0];
  const int64_t length = tokens.shape.back();
  check(batch == 1, "generation runs one sequence at a time");
  check(step.tensor_ranks == nullptr, "ranks that share layers do not generate");
  const View logits =
      fp8train::allocate(*context.scratch, plan_.activation, {batch, head_->padded_vocabulary()});
  ArenaScope scope(*context.scratch);
  const View embedded = embed(context, tokens, caches.front().length, *context.scratch);
  Residual stream = {.x = embedded,
                     .branch = fp8train::allocate(*context.scratch, embedded.dtype, embedded.shape),
                     .sum = {}};
  MicroBatchPass pass = {.tokens = tokens, .targets = {}};
  run_blocks(context, stream, pass, &caches);
  for (KvCache& cache : caches) {
    cache.length += length;
  }
  const View normed =
      fp8train::allocate(*context.scratch, embedded.dtype, {1, config_.hidden_size});
  use_head(context, ParameterGatherer::kNone);
  Norm::Saved unused;
  const auto last_row = [&](const View& view) {
    return view.empty() ? view : rows_of(view, length - 1, 1);
  };
  const Residual last = {last_row(stream.x), last_row(stream.branch), last_row(stream.sum)};
  final_norm_->forward(context, last, normed, unused);
  head_->logits(context, normed, logits);
  scaling_.end_evaluation(step.stream);
  return logits;
}

}  // namespace fp8train
