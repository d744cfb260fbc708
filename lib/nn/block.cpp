#include "nn/block.h"

#include "ops/elementwise.h"

namespace fp8train {

void Block::run(const StepContext& context, ConstView x, View y, int64_t batch, KvCache* cache,
                Saved& saved) const {
  ArenaScope scope(*context.scratch);
  const auto place = [&](bool keep) -> Arena& {
    return context.training && keep ? *context.saved : *context.scratch;
  };
  saved.x = x;
  const View branch = allocate(*context.scratch, x.dtype, x.shape);
  {
    ArenaScope inner(*context.scratch);
    const View normed = allocate(place(attention_.qkv().keeps_input()), x.dtype, x.shape);
    attention_norm_.forward(context, x, normed, saved.attention_norm);
    attention_.forward(context, normed, branch, batch, cache, saved.attention);
  }
  saved.middle = allocate(place(true), x.dtype, x.shape);
  ops::add(context.stream, x, branch, saved.middle);
  {
    ArenaScope inner(*context.scratch);
    const View normed = allocate(place(mlp_.up().keeps_input()), x.dtype, x.shape);
    mlp_norm_.forward(context, saved.middle, normed, saved.mlp_norm);
    mlp_.forward(context, normed, branch, saved.mlp);
  }
  ops::add(context.stream, saved.middle, branch, y);
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
