#include "model/linear_sites.h"

#include <fmt/format.h>

#include <optional>

#include "base/math.h"

namespace fp8train {
namespace {

constexpr int64_t kVocabularyMultiple = 16;

using Visit = std::function<void(const LinearSite&)>;

void for_each_linear_of_attention(const ModelConfig& config, int64_t block, const Visit& visit) {
  const int64_t queries = config.num_attention_heads * config.head_dim;
  const int64_t keys = config.num_key_value_heads * config.head_dim;
  visit({.name = fmt::format("layers.{}.attention.qkv", block),
         .in_features = config.hidden_size,
         .out_features = config.qkv_width(),
         .block = block,
         .of_attention = true,
         .has_bias = config.qkv_bias,
         .matrices = {queries, keys, keys},
         .split = Split::columns});
  visit({.name = fmt::format("layers.{}.attention.output", block),
         .in_features = queries,
         .out_features = config.hidden_size,
         .block = block,
         .of_attention = true,
         .has_bias = config.attention_output_bias,
         .ends_branch = true,
         .matrices = {config.hidden_size},
         .split = Split::rows});
}

/// mlp: "layers.0.mlp" or an expert of it, of which a rank has all or nothing.
void for_each_linear_of_mlp(const ModelConfig& config, int64_t block, const std::string& mlp,
                            int64_t inner, std::optional<double> expert_share, const Visit& visit) {
  const double token_share = expert_share.value_or(1.0);
  const bool gated = is_gated(config.mlp);
  visit({.name = mlp + ".up",
         .in_features = config.hidden_size,
         .out_features = gated ? 2 * inner : inner,
         .block = block,
         .has_bias = config.mlp_bias,
         .matrices = gated ? std::vector<int64_t>{inner, inner} : std::vector<int64_t>{inner},
         .split = expert_share ? Split::none : Split::columns,
         .token_share = token_share});
  visit({.name = mlp + ".down",
         .in_features = inner,
         .out_features = config.hidden_size,
         .block = block,
         .reads_swiglu = config.mlp == MlpKind::swiglu,
         .has_bias = config.mlp_bias,
         .ends_branch = true,
         .matrices = {config.hidden_size},
         .split = expert_share ? Split::none : Split::rows,
         .token_share = token_share});
}

void for_each_linear_of_moe(const ModelConfig& config, int64_t block, const std::string& mlp,
                            const Visit& visit) {
  const MoeShape& moe = config.moe;
  const double share = static_cast<double>(moe.per_token) / static_cast<double>(moe.experts);
  for (int64_t expert = 0; expert < moe.experts; ++expert) {
    for_each_linear_of_mlp(config, block, fmt::format("{}.experts.{}", mlp, expert), moe.width,
                           share, visit);
  }
  if (moe.shared_width > 0) {
    for_each_linear_of_mlp(config, block, mlp + ".shared", moe.shared_width, {}, visit);
  }
}

}  // namespace

int64_t padded_vocabulary(const ModelConfig& config, int64_t parts) {
  return round_up(config.vocab_size, kVocabularyMultiple * parts);
}

void for_each_linear(const ModelConfig& config, const Visit& visit) {
  for (int64_t block = 0; block < config.num_hidden_layers; ++block) {
    for_each_linear_of_attention(config, block, visit);
    const std::string mlp = fmt::format("layers.{}.mlp", block);
    if (config.has_experts(block)) {
      for_each_linear_of_moe(config, block, mlp, visit);
    } else {
      for_each_linear_of_mlp(config, block, mlp, config.intermediate_size, {}, visit);
    }
  }
  visit({.name = "head",
         .in_features = config.hidden_size,
         .out_features = padded_vocabulary(config),
         .is_head = true,
         .used_rows = config.vocab_size,
         .split = Split::columns});
}

std::vector<LinearSite> linear_sites(const ModelConfig& config) {
  std::vector<LinearSite> sites;
  for_each_linear(config, [&](const LinearSite& site) { sites.push_back(site); });
  return sites;
}

}  // namespace fp8train
