#pragma once
// The shape of a mixture of experts (nn/moe.h), how its router chooses, and how it is trained.

#include <cstdint>
#include <string>
#include <string_view>

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

/// The experts of each layer that a rank of Group::expert has: an equal part, one after another.
struct ExpertShare {
  int rank = 0, ranks = 1;
  /// Whether its gradients of its experts, and of what ranks with other experts have too, are those
  /// that count in the norm: the others repeat them.
  bool counts_experts = true, counts_others = true;
};

/// Returns the number of an expert in a name such as "layers.0.mlp.experts.3.up"; -1: none.
inline int64_t expert_of(const std::string& name) {
  constexpr std::string_view kExperts = ".experts.";
  const size_t at = name.find(kExperts);
  return at == std::string::npos ? -1 : std::stoll(name.substr(at + kExperts.size()));
}

/// How the experts of a model are trained (nn/moe.h); read if it has some.
struct MoeSettings {
  /// The tokens that an expert has memory for in a micro-batch, as a multiple of the mean. Those
  /// after them are dropped: the expert adds nothing to them. With at least experts / per_token
  /// none is ever dropped. Passes that train nothing have twice as much, and at least for 256
  /// tokens.
  double capacity_factor = 1.25;
  /// An expert has as many rows as it has tokens, whatever their number: none is dropped. The rows
  /// of all experts together are bounded, and memory is planned for the bound (Moe::slots()).
  /// Factors of capacities are not read.
  bool dropless = false;
  /// The first steps, with another factor: untrained routers send much to few experts.
  int64_t capacity_warmup = 0;
  double warmup_capacity_factor = 2.0;
  double balance_loss = 0.0;  ///< weight of the loss of each layer whose experts' loads differ
  double z_loss = 0.0;        ///< weight of the squared log of the normalizer of router's scores
  /// A step changes each bias (MoeShape::has_bias) by this, towards equal loads.
  double bias_rate = 0.001;
  /// A step that drops more of the choices, and is logged, ends the run; 1: none does. Routers drop
  /// much in their first steps.
  double max_dropped = 1.0;

  /// Whether a step (from 0) has warmup_capacity_factor.
  bool warms_up(int64_t step) const { return 0 <= step && step < capacity_warmup; }
  /// Whether routers have losses of their own.
  bool has_losses() const { return balance_loss != 0.0 || z_loss != 0.0; }
  bool operator==(const MoeSettings&) const = default;
};

}  // namespace fp8train
