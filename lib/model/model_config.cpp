#include "model/model_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/key_error.h"
#include "model/families/hf_fields.h"
#include "model/linear_sites.h"
#include "model/lora.h"

namespace fp8train {
namespace {

void require(bool holds, const std::string& message) {
  if (!holds) {
    throw KeyError("model", ": " + message);
  }
}

int64_t norm_parameters(const ModelConfig& config) {
  const bool has_bias = config.norm == NormKind::layer_norm && config.norm_bias;
  return config.hidden_size * (has_bias ? 2 : 1);
}

/// Counts the parameters of a block's norms.
int64_t block_vectors(const ModelConfig& config) {
  return 2 * norm_parameters(config) + (config.qk_norm ? 2 * config.head_dim : 0);
}

int64_t blocks_with_experts(const ModelConfig& config) {
  return config.moe.experts == 0
             ? 0
             : config.num_hidden_layers - static_cast<int64_t>(config.dense_layers.size());
}

void require_limits(const ModelConfig& config) {
  struct Extent {
    const char* name;
    int64_t value, most;
  };
  for (const auto& [name, value, most] :
       {Extent{"vocab_size", config.vocab_size, ModelLimits::vocabulary},
        Extent{"hidden_size", config.hidden_size, ModelLimits::hidden},
        Extent{"intermediate_size", config.intermediate_size, ModelLimits::intermediate},
        Extent{"num_hidden_layers", config.num_hidden_layers, ModelLimits::layers},
        Extent{"num_attention_heads", config.num_attention_heads, ModelLimits::heads},
        Extent{"num_key_value_heads", config.num_key_value_heads, ModelLimits::heads},
        Extent{"head_dim", config.head_dim, ModelLimits::head_dim},
        Extent{"max_position_embeddings", config.max_position_embeddings, ModelLimits::positions},
        Extent{"num_experts", config.moe.experts, ModelLimits::experts},
        Extent{"num_experts_per_tok", config.moe.per_token, ModelLimits::experts},
        Extent{"moe_intermediate_size", config.moe.width, ModelLimits::intermediate},
        Extent{"shared_expert_intermediate_size", config.moe.shared_width,
               ModelLimits::intermediate}}) {
    require(value >= 0 && value <= most,
            fmt::format("{} is {}; it must be in [1, {}]", name, value, most));
  }
}

/// Checks the experts of a model that has some. Fills in nothing.
void require_experts(const ModelConfig& config) {
  const MoeShape& moe = config.moe;
  require(moe.per_token > 0 && moe.per_token <= moe.experts,
          fmt::format("num_experts_per_tok is {}; it must be in [1, num_experts {}]", moe.per_token,
                      moe.experts));
  require(moe.width > 0, "moe_intermediate_size is missing");
  require(std::ssize(config.dense_layers) < config.num_hidden_layers,
          "dense_layers has all layers; remove num_experts for a model without experts");
  require(moe.groups > 0 && moe.experts % moe.groups == 0,
          fmt::format("n_group {} does not divide num_experts {}", moe.groups, moe.experts));
  require(moe.groups_per_token > 0 && moe.groups_per_token <= moe.groups,
          fmt::format("topk_group is {}; it must be in [1, n_group {}]", moe.groups_per_token,
                      moe.groups));
  const int64_t of_group = moe.experts / moe.groups;
  require(moe.groups == 1 || of_group >= 2,
          fmt::format("a group of n_group {} has one expert; groups are compared by the sum of "
                      "their two best",
                      moe.groups));
  require(moe.per_token <= moe.groups_per_token * of_group,
          fmt::format("num_experts_per_tok {} is more than the {} experts of topk_group {}",
                      moe.per_token, moe.groups_per_token * of_group, moe.groups_per_token));
  require(
      moe.per_token > 1 || !moe.normalizes,
      "num_experts_per_tok 1 with norm_topk_prob gives every token the weight 1, and the router "
      "no gradient; set norm_topk_prob to false");
  require(std::isfinite(moe.scale) && moe.scale > 0.0F,
          fmt::format("routed_scaling_factor is {}; it must be above 0", moe.scale));
  for (size_t i = 0; i < config.dense_layers.size(); ++i) {
    const int64_t layer = config.dense_layers[i];
    require(
        layer >= (i == 0 ? 0 : config.dense_layers[i - 1] + 1) && layer < config.num_hidden_layers,
        fmt::format("dense_layers has {}; its entries must ascend in [0, {}]", layer,
                    config.num_hidden_layers - 1));
  }
}

}  // namespace

bool ModelConfig::has_experts(int64_t block) const {
  return moe.experts > 0 && !std::ranges::binary_search(dense_layers, block);
}

ModelConfig completed(ModelConfig config) {
  require_limits(config);
  require(config.hidden_size > 0, "hidden_size is missing");
  require(config.num_hidden_layers > 0, "num_hidden_layers is missing");
  require(config.num_attention_heads > 0, "num_attention_heads is missing");
  if (config.num_key_value_heads == 0) {
    config.num_key_value_heads = config.num_attention_heads;
  }
  if (config.head_dim == 0) {
    require(config.hidden_size % config.num_attention_heads == 0,
            fmt::format("hidden_size {} is not a multiple of num_attention_heads {}",
                        config.hidden_size, config.num_attention_heads));
    config.head_dim = config.hidden_size / config.num_attention_heads;
  }
  MoeShape& moe = config.moe;
  if (moe.experts > 0) {
    moe.width = moe.width == 0 ? config.intermediate_size : moe.width;
    const bool all = config.dense_layers.empty();  // then no block reads the other width
    config.intermediate_size = all ? moe.width : config.intermediate_size;
  }
  if (config.intermediate_size == 0) {
    require(!is_gated(config.mlp), "intermediate_size is missing");
    config.intermediate_size = 4 * config.hidden_size;
  }
  require(config.num_attention_heads % config.num_key_value_heads == 0,
          fmt::format("num_attention_heads {} is not a multiple of num_key_value_heads {}",
                      config.num_attention_heads, config.num_key_value_heads));
  require_limits(config);  // with what followed from others
  require(config.head_dim % 2 == 0,
          fmt::format("head_dim {} is odd; attention takes its elements in pairs (without "
                      "model.head_dim it is hidden_size / num_attention_heads)",
                      config.head_dim));
  require(config.max_position_embeddings > 0, "max_position_embeddings is missing");
  if (config.moe.experts > 0) {
    require_experts(config);
  }
  if (config.rope_scaling) {
    RopeScaling& scaling = *config.rope_scaling;
    if (scaling.type == RopeType::yarn && scaling.original_max_position_embeddings == 0) {
      scaling.original_max_position_embeddings = config.max_position_embeddings;
    }
    const std::string problem = rope_scaling_problem(scaling);
    require(problem.empty(), "rope_scaling: " + problem);
    require(scaling.type != RopeType::yarn || config.rope_theta > 1.0,
            "rope_scaling: yarn needs a rope_theta above 1");
  }
  // Names of experts' tensors differ between families.
  if (const ModelFamily* written = moe.experts > 0 ? written_family(config) : nullptr) {
    config.family = written;
  }
  return config;
}

int64_t longest_sequence(const ModelConfig& config) {
  return config.sliding_window > 0 ? std::min(config.max_position_embeddings, config.sliding_window)
                                   : config.max_position_embeddings;
}

std::string longest_sequence_reason(const ModelConfig& config) {
  if (longest_sequence(config) == config.max_position_embeddings) {
    return fmt::format("the model's max_position_embeddings {}", config.max_position_embeddings);
  }
  return fmt::format(
      "the model's sliding window {} (attention over a window is not implemented; up to its length "
      "it is the same as full attention)",
      config.sliding_window);
}

bool same_computation(const ModelConfig& a, const ModelConfig& b) {
  ModelConfig other = b;
  other.family = a.family;
  return a == other;
}

namespace {

/// `of_token`: those that a token meets.
double adapter_parameters(const ModelConfig& config, bool of_token) {
  double count = 0;
  for (const LoraPiece& piece : lora_pieces(config)) {
    count += (of_token ? piece.token_share : 1.0) *
             static_cast<double>(piece.elements(config.lora.rank));
  }
  return count;
}

}  // namespace

int64_t parameter_count(const ModelConfig& config) {
  int64_t count = config.vocab_size * config.hidden_size + norm_parameters(config) +
                  config.num_hidden_layers * block_vectors(config);
  if (config.positions == PositionKind::learned) {
    count += config.max_position_embeddings * config.hidden_size;
  }
  for_each_linear(config, [&](const LinearSite& site) {
    const bool shared = site.is_head && config.tie_word_embeddings;
    count += (shared ? 0 : site.weights()) + (site.has_bias ? site.out_features : 0);
  });
  return count + static_cast<int64_t>(adapter_parameters(config, false)) +
         blocks_with_experts(config) * config.moe.experts *
             (config.hidden_size + (config.moe.has_bias ? 1 : 0));
}

double flops_per_token(const ModelConfig& config, int64_t seq_length) {
  double weights =
      static_cast<double>(blocks_with_experts(config) * config.moe.experts * config.hidden_size);
  for_each_linear(config, [&](const LinearSite& site) {
    weights += site.token_share * static_cast<double>(site.weights());
  });
  // Frozen weights have no gradient.
  const double gemm =
      (config.lora.is_on() ? 4.0 : 6.0) * weights + 6.0 * adapter_parameters(config, true);
  // Two products of T x T x D per head, half of them masked; backward is twice forward.
  const double attention = 6.0 * static_cast<double>(config.num_hidden_layers) *
                           static_cast<double>(config.num_attention_heads * config.head_dim) *
                           static_cast<double>(seq_length);
  return gemm + attention;
}

}  // namespace fp8train
