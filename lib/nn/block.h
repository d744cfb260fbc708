#pragma once
// One pre-norm transformer block: x + attention(norm(x)), then + mlp(norm(.)), where the MLP may be
// a mixture of experts. The norm after the block adds the result of the MLP. Of a half that is
// recomputed forward stores only the input, and backward first runs it forward again, without its
// last product where backward does not read that. It uses the same scales, because they change only
// between micro-batches. Refers to parameters of a store; activations are in the arenas of the
// context, and all work is asynchronous on its stream.

#include <variant>

#include "nn/attention.h"
#include "nn/mlp.h"
#include "nn/moe.h"
#include "nn/norm.h"
#include "nn/recompute.h"

namespace fp8train {

/// A block of a decoder: norm, attention, norm and feed-forward, with residual additions.
class Block {
 public:
  struct Saved {
    View x, middle;  ///< the input of the block and of its MLP; only recomputation reads them
    Norm::Saved attention_norm, mlp_norm;
    Attention::Saved attention;
    Mlp::Saved mlp;
    Moe::Saved moe;  ///< one of both is used
  };

  /// `encodes_residuals`: the norms store codes, so that nothing of the residual stream stays
  /// alive.
  Block(Norm attention_norm, Attention attention, Norm mlp_norm, std::variant<Mlp, Moe> mlp,
        Recompute recompute, bool encodes_residuals)
      : attention_norm_(attention_norm),
        attention_(std::move(attention)),
        mlp_norm_(mlp_norm),
        mlp_(std::move(mlp)),
        recompute_(recompute),
        encodes_residuals_(encodes_residuals) {}

  /// Calls visit(Linear&) in order of execution, which is that of model/linear_sites.h.
  template <typename Visit>
  void for_each_linear(const Visit& visit) {
    attention_.for_each_linear(visit);
    std::visit([&](auto& mlp) { mlp.for_each_linear(visit); }, mlp_);
  }
  /// Returns null if the block has one Mlp for all tokens.
  Moe* moe() { return std::get_if<Moe>(&mlp_); }

  /// stream: the block's input, [B * T, C], on entry; on return its output, due to be added into y,
  /// which has the same shape. y must not alias the input, nor the views that `stream` consists of.
  /// `caches`: as Attention::forward() takes them.
  void forward(const StepContext& context, Residual& stream, View y, int64_t batch,
               std::span<const KvCache> caches, Saved& saved) const;

  /// Runs backward, with recompute after another forward pass, which fills `saved` again.
  /// `gradient`, [B * T, C], is that of y on entry and that of x on return.
  void backward(const StepContext& context, View gradient, int64_t batch, Saved& saved) const;
  /// Adds the weight gradients that backward() has left (StepContext::held).
  void add_weight_gradients(const StepContext& context, const Saved& saved) const {
    if (const Moe* moe = std::get_if<Moe>(&mlp_)) {
      moe->add_weight_gradients(context, saved.moe);
    } else {
      std::get<Mlp>(mlp_).add_weight_gradients(context, saved.mlp);
    }
    attention_.add_weight_gradients(context, saved.attention);
  }

 private:
  /// y: the branch, which has the memory of the one that the stream has had, or no memory, and is
  /// not made then.
  void run_attention(const StepContext& context, const Residual& stream, View y, int64_t batch,
                     std::span<const KvCache> caches, Saved& saved) const;
  void run_mlp(const StepContext& context, const Residual& stream, View y, Saved& saved) const;

  Norm attention_norm_;
  Attention attention_;
  Norm mlp_norm_;
  std::variant<Mlp, Moe> mlp_;
  Recompute recompute_;
  bool encodes_residuals_;
};

}  // namespace fp8train
