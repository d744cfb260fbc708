#include "nn/block.h"

#include "ops/pointwise/elementwise.h"

namespace fp8train {

void Block::run(const StepContext& context, ConstView x, View y, int64_t batch, KvCache* cache,
                Saved& saved) const {
  ArenaScope scope(*context.scratch);
  const int64_t rows = x.shape.rows();
  saved.x = x;
  const View branch = allocate(*context.scratch, x.dtype, x.shape);
  {
    ArenaScope inner(*context.scratch);
    const Linear::Input normed = attention_.qkv().place_input(context, rows);
    attention_norm_.forward(context, x, normed.plain, saved.attention_norm, normed.cast);
    attention_.forward(context, normed, branch, batch, cache, saved.attention);
  }
  Arena& stored = context.training && !encodes_residuals_ ? *context.saved : *context.scratch;
  const View middle = allocate(stored, x.dtype, x.shape);
  ops::add(context.stream, x, branch, middle);
  {
    ArenaScope inner(*context.scratch);
    const Linear::Input normed = mlp_.up().place_input(context, rows);
    mlp_norm_.forward(context, middle, normed.plain, saved.mlp_norm, normed.cast);
    mlp_.forward(context, normed, branch, saved.mlp);
  }
  ops::add(context.stream, middle, branch, y);
}

void Block::forward(const StepContext& context, ConstView x, View y, int64_t batch, KvCache* cache,
                    Saved& saved) const {
  if (!recompute_ || !context.training) {
    run(context, x, y, batch, cache, saved);
    return;
  }
  ArenaScope dropped(*context.saved);
  run(context, x, y, batch, cache, saved);
}

void Block::backward(const StepContext& context, View gradient, int64_t batch, Saved& saved) const {
  ArenaScope scope(*context.scratch);
  ArenaScope recomputed(*context.saved);
  if (recompute_) {
    ArenaScope unused_output(*context.scratch);
    run(context, saved.x, allocate(*context.scratch, saved.x.dtype, saved.x.shape), batch, nullptr,
        saved);
  }
  const View d_normed = allocate(*context.scratch, gradient.dtype, gradient.shape);
  mlp_.backward(context, gradient, d_normed, saved.mlp);
  mlp_norm_.backward(context, d_normed, gradient, true, saved.mlp_norm);
  attention_.backward(context, gradient, d_normed, batch, saved.attention);
  attention_norm_.backward(context, d_normed, gradient, true, saved.attention_norm);
}

}  // namespace fp8train
