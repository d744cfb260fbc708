#pragma once
// The shape of a mixture of experts (nn/moe.h), and how its router chooses.

#include <cstdint>

namespace fp8train {

/// How logits of the router become scores.
enum class RouterScore : uint8_t { softmax, sigmoid };

/// The feed-forward half of a block in which each token is processed by the experts of highest
/// score, and by an expert that all share. An expert is an Mlp.
struct MoeShape {
  int64_t experts = 0;    ///< E; 0: the block has one Mlp for all tokens
  int64_t per_token = 0;  ///< k: experts that a token is sent to
  int64_t width = 0;      ///< inner width of an expert
  /// Inner width of the expert that processes every token; 0: there is none.
  int64_t shared_width = 0;
  /// Experts are chosen among the `groups_per_token` of `groups` equal groups whose two best
  /// experts have the highest sum of scores (DeepSeek-V3, arXiv 2412.19437, section 2.1.2).
  int64_t groups = 1, groups_per_token = 1;
  RouterScore score = RouterScore::softmax;
  bool normalizes = true;  ///< the scores of the chosen experts are divided by their sum
  /// The choice reads scores plus a bias of each expert, which balances the load and has no
  /// gradient (Wang et al., arXiv 2408.15664).
  bool has_bias = false;
  float scale = 1.0F;  ///< what the chosen scores are multiplied by in the end

  bool operator==(const MoeShape&) const = default;
};

}  // namespace fp8train
