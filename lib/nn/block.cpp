#include "nn/block.h"

#include <optional>

namespace fp8train {
namespace {

/// Releases what a half of a block stores for backward, if it is not read.
class Dropped {
 public:
  Dropped(const StepContext& context, bool drops) {
    if (drops && context.training) {
      saved_.emplace(*context.saved);
      operands_.emplace(*context.memory_of_x());
    }
  }

 private:
  std::optional<ArenaScope> saved_, operands_;
};

}  // namespace

void Block::run_attention(const StepContext& context, const Residual& stream, View y, int64_t batch,
                          std::span<const KvCache> caches, Saved& saved) const {
  ArenaScope scope(*context.scratch);
  const InputTensor normed = attention_.qkv().allocate_input(context, stream.x.shape.rows());
  attention_norm_.forward(context, stream, normed.plain, saved.attention_norm, normed.cast);
  attention_.forward(context, normed, y, batch, caches, saved.attention);
}

void Block::run_mlp(const StepContext& context, const Residual& stream, View y,
                    Saved& saved) const {
  ArenaScope scope(*context.scratch);
  const auto run = [&](const auto& mlp, const InputTensor& normed, auto& of_mlp) {
    mlp_norm_.forward(context, stream, normed.plain, saved.mlp_norm, normed.cast);
    mlp.forward(context, normed, y, of_mlp);
  };
  if (const Moe* moe = std::get_if<Moe>(&mlp_)) {
    if (y.empty()) {  // backward reads the output of each expert, if not their sum
      y = allocate(*context.scratch, stream.x.dtype, stream.x.shape);
    }
    run(*moe, moe->allocate_input(context, y), saved.moe);
  } else {
    const Mlp& mlp = std::get<Mlp>(mlp_);
    run(mlp, mlp.up().allocate_input(context, stream.x.shape.rows()), saved.mlp);
  }
}

void Block::forward(const StepContext& context, Residual& stream, View y, int64_t batch,
                    std::span<const KvCache> caches, Saved& saved) const {
  saved.x = stream.value();
  const bool reads_middle =
      recompute_ != Recompute::block && (!encodes_residuals_ || recompute_ == Recompute::mlp);
  saved.middle = context.training && reads_middle ? allocate(*context.saved, y.dtype, y.shape) : y;
  {
    const Dropped dropped(context, recomputes(recompute_, Recompute::attention));
    run_attention(context, stream, stream.branch, batch, caches, saved);
  }
  stream = stream.plus_branch(saved.middle);
  {
    const Dropped dropped(context, recomputes(recompute_, Recompute::mlp));
    run_mlp(context, stream, stream.branch, saved);
  }
  stream = stream.plus_branch(y);
}

void Block::backward(const StepContext& context, View gradient, int64_t batch, Saved& saved) const {
  ArenaScope scope(*context.scratch);
  ArenaScope recomputed(*context.saved);
  const auto like_x = [&](Arena& arena) { return allocate(arena, saved.x.dtype, saved.x.shape); };
  Residual stream = {.x = saved.x, .branch = {}, .sum = {}};
  if (recompute_ == Recompute::block) {
    ArenaScope unread(*context.scratch);
    saved.middle = like_x(encodes_residuals_ ? *context.scratch : *context.saved);
    stream.branch = like_x(*context.scratch);
    run_attention(context, stream, stream.branch, batch, {}, saved);
    run_mlp(context, stream.plus_branch(saved.middle), {}, saved);
  } else if (recompute_ == Recompute::mlp) {
    run_mlp(context, {.x = saved.middle, .branch = {}, .sum = {}}, {}, saved);
  }
  const View d_normed = allocate(*context.scratch, gradient.dtype, gradient.shape);
  if (const Moe* moe = std::get_if<Moe>(&mlp_)) {
    moe->backward(context, gradient, d_normed, batch, saved.moe);
  } else {
    std::get<Mlp>(mlp_).backward(context, gradient, d_normed, saved.mlp);
  }
  mlp_norm_.backward(context, d_normed, gradient, true, saved.mlp_norm);
  if (recompute_ == Recompute::attention) {
    run_attention(context, stream, {}, batch, {}, saved);
  }
  attention_.backward(context, gradient, d_normed, batch, saved.attention);
  attention_norm_.backward(context, d_normed, gradient, true, saved.attention_norm);
}

}  // namespace fp8train
