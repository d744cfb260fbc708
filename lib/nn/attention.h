#pragma once
// Self-attention of one block: fused q, k, v projection, optional norm of each q and k head, rotary
// embedding, causal attention with grouped queries, output projection. Attention's own products
// are in the activation type, or in FP8 (AttentionPlan) where no KV cache is read. The layer owns
// no device memory: its activations are in the arenas of the context, and all work is asynchronous
// on the context's stream.

#include <array>
#include <optional>
#include <span>

#include "nn/context.h"
#include "nn/linear.h"
#include "ops/attention/attention.h"

namespace fp8train {

/// cos and sin of position * frequency, fp32 [positions, D / 2]; shared by all blocks. Empty views:
/// no rotary embedding.
struct RotaryTables {
  ConstView cosines;
  ConstView sines;
};

/// Keys and values of the positions of a sequence so far, for generation: [capacity, Hkv * D] each,
/// in the activation type.
struct KvCache {
  View keys;
  View values;
  int64_t length = 0;  ///< positions already there
  int64_t capacity = 0;
};

/// The scaling of attention in FP8. A tensor that the plan does not scale has no slot.
struct AttentionScaling {
  QuantizedInput qkv, out, dout, dqkv;
  const ScalingSlot* probabilities;
  const ScalingSlot* dscores;  ///< null: the backward pass is not in FP8

  /// Registers the slots of "layers.0.attention". Ranks of the tensor axis have heads of each
  /// tensor.
  AttentionScaling(const AttentionPlan& plan, const std::string& layer, bool in_evaluation,
                   ScalingState& scaling);
};

/// The attention of a block: projections, head norms, rotary embedding and causal attention.
class Attention {
 public:
  struct Dimensions {  ///< of this rank
    int64_t heads, kv_heads, head_dim;
    int64_t qkv_width() const { return (heads + 2 * kv_heads) * head_dim; }
  };
  /// The weights [D] of the norms of q and k heads. Both are null if there are no norms.
  struct HeadNorms {
    Parameter* q = nullptr;
    Parameter* k = nullptr;
    float eps = 0.0F;
  };
  struct Saved {
    Linear::Saved qkv, output;
    /// The operands and the result of attention: q, k, v after norm and rotation, [B * T, (H + 2
    /// Hkv) D]; its output, [B * T, H D]; fp32 [B, H, T]. Where ranks share sequences, T is that of
    /// the rank's part; where they swap rows for heads (context_exchange.h), of the whole, H and
    /// Hkv being those of the rank.
    View projected, attended, log_sum_exp;
    /// Codes of q, k and v and of the output, which backward in FP8 reads instead.
    Encoded projected_codes, attended_codes;
    /// Set if there are head norms: q and k before them, [B * T, H D] and [B * T, Hkv D], and fp32
    /// [B * T, H] and [B * T, Hkv]; for each of StepContext::tensor_parts its heads.
    View q_original, k_original, q_rstd, k_rstd;
  };

  /// Refers to the weights of the norms and to `rotary`, which outlive it.
  Attention(Dimensions dimensions, Linear qkv, Linear output, HeadNorms norms,
            const RotaryTables& rotary, std::optional<AttentionScaling> scaling = std::nullopt);

  /// Calls visit(Linear&) in order of execution.
  template <typename Visit>
  void for_each_linear(const Visit& visit) {
    visit(qkv_);
    visit(output_);
  }
  const Linear& qkv() const { return qkv_; }

  /// x: [B * T, C], as qkv() has allocated it -> y: [B * T, C]. The shape of x is read even if x
  /// has no memory. With `caches` (not training), one for each sequence: T new positions are
  /// appended to each; the caller advances KvCache::length. Where lengths differ,
  /// StepContext::document_starts has the longest one minus that of each sequence. Throws
  /// InternalError if a cache is full.
  void forward(const StepContext& context, const InputTensor& x, View y, int64_t batch,
               std::span<const KvCache> caches, Saved& saved) const;
  /// dy, dx: [B * T, C]; dx is overwritten. Adds to the gradients of all weights of the layer, or
  /// overwrites them (StepContext::overwrites_gradients).
  void backward(const StepContext& context, ConstView dy, View dx, int64_t batch,
                Saved& saved) const;
  /// Adds the weight gradients that backward() has left (StepContext::held).
  void add_weight_gradients(const StepContext& context, const Saved& saved) const {
    output_.add_weight_gradient(context, saved.output);
    qkv_.add_weight_gradient(context, saved.qkv);
  }

 private:
  /// The heads that attention has of all positions.
  Dimensions swapped(const StepContext& context) const;
  ops::AttentionShape shape(const Dimensions& heads, int64_t batch, int64_t queries,
                            int64_t keys) const;
  ops::HeadsView slice(const View& projected, int64_t first_head, int64_t length) const;
  View heads_of(const View& projected, int64_t first_head, int64_t heads) const;
  /// The heads of q, and those of k, which follow them in each row.
  void rotate(const StepContext& context, const ops::HeadsView& q, int64_t batch, int64_t length,
              int64_t position, bool inverse) const;
  void normalize_heads(const StepContext& context, const View& projected, Saved& saved) const;
  std::array<int64_t, 3> qkv_pieces() const;
  std::array<ops::HeadsView, 2> append_to_cache(const StepContext& context, const View& projected,
                                                const KvCache& cache) const;
  void cached_forward(const StepContext& context, std::span<const KvCache> caches,
                      const Saved& saved) const;
  std::array<ops::HeadsView, 2> gather_keys(const StepContext& context, const View& projected,
                                            int64_t batch) const;
  void codes_forward(const StepContext& context, int64_t batch, Arena& of_codes,
                     Saved& saved) const;
  void codes_backward(const StepContext& context, const View& d_attended, const View& d_projected,
                      int64_t batch, const Saved& saved) const;
  void attention_forward(const StepContext& context, int64_t batch, int64_t past,
                         const std::array<ops::HeadsView, 2>& keys, const Saved& saved) const;
  void attention_backward(const StepContext& context, const View& d_attended,
                          const View& d_projected, int64_t batch, const Saved& saved) const;
  void normalize_heads_backward(const StepContext& context, const View& d_projected,
                                const Saved& saved) const;

  Dimensions dimensions_;
  Linear qkv_, output_;
  HeadNorms norms_;
  const RotaryTables* rotary_;
  std::optional<AttentionScaling> scaling_;
};

}  // namespace fp8train
