#include "nn/block.h"

namespace fp8train {

/// middle: memory for the stream between attention and MLP, which is what `stream` then adds to.
void Block::run(const StepContext& context, Residual& stream, View middle, int64_t batch,
                KvCache* cache, Saved& saved) const {
  const int64_t rows = stream.x.shape.rows();
  saved.x = stream.value();
  {
    ArenaScope scope(*context.scratch);
    const InputTensor normed = attention_.qkv().allocate_input(context, rows);
    attention_norm_.forward(context, stream, normed.plain, saved.attention_norm, normed.cast);
    attention_.forward(context, normed, stream.branch, batch, cache, saved.attention);
  }
  stream = stream.plus_branch(middle);
  run_mlp(context, stream, saved);
}

void Block::run_mlp(const StepContext& context, const Residual& stream, Saved& saved) const {
  ArenaScope scope(*context.scratch);
  const auto run = [&](const auto& mlp, const InputTensor& normed, auto& of_mlp) {
    mlp_norm_.forward(context, stream, normed.plain, saved.mlp_norm, normed.cast);
    mlp.forward(context, normed, stream.branch, of_mlp);
  };
  if (const Moe* moe = std::get_if<Moe>(&mlp_)) {
    run(*moe, moe->allocate_input(context, stream.branch), saved.moe);
  } else {
    const Mlp& mlp = std::get<Mlp>(mlp_);
    run(mlp, mlp.up().allocate_input(context, stream.branch.shape.rows()), saved.mlp);
  }
}

void Block::forward(const StepContext& context, Residual& stream, View y, int64_t batch,
                    KvCache* cache, Saved& saved) const {
  if (recompute_ && context.training) {
    ArenaScope dropped(*context.saved);
    ArenaScope dropped_operands(*context.memory_of_x());
    run(context, stream, y, batch, cache, saved);
  } else {
    const bool keeps = context.training && !encodes_residuals_;
    const View middle = keeps ? allocate(*context.saved, y.dtype, y.shape) : y;
    run(context, stream, middle, batch, cache, saved);
  }
  stream = stream.plus_branch(y);
}

void Block::backward(const StepContext& context, View gradient, int64_t batch, Saved& saved) const {
  ArenaScope scope(*context.scratch);
  ArenaScope recomputed(*context.saved);
  if (recompute_) {
    ArenaScope unused_output(*context.scratch);
    const auto like_x = [&](Arena& arena) { return allocate(arena, saved.x.dtype, saved.x.shape); };
    Residual stream = {.x = saved.x, .branch = like_x(*context.scratch), .sum = {}};
    const View middle = like_x(encodes_residuals_ ? *context.scratch : *context.saved);
    run(context, stream, middle, batch, nullptr, saved);
  }
  const View d_normed = allocate(*context.scratch, gradient.dtype, gradient.shape);
  if (const Moe* moe = std::get_if<Moe>(&mlp_)) {
    moe->backward(context, gradient, d_normed, batch, saved.moe);
  } else {
    std::get<Mlp>(mlp_).backward(context, gradient, d_normed, saved.mlp);
  }
  mlp_norm_.backward(context, d_normed, gradient, true, saved.mlp_norm);
  attention_.backward(context, gradient, d_normed, batch, saved.attention);
  attention_norm_.backward(context, d_normed, gradient, true, saved.attention_norm);
}

}  // namespace fp8train
