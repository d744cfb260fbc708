// Qwen3-MoE (huggingface/transformers: src/transformers/models/qwen3_moe): Qwen3 with experts in
// blocks that the configuration names.

#include <algorithm>

#include "model/families/hf_fields.h"
#include "model/families/llama_like.h"

namespace fp8train {
namespace {

class Qwen3Moe : public LlamaLike {
 public:
  std::string_view name() const override { return "qwen3_moe"; }
  std::string_view architecture() const override { return "Qwen3MoeForCausalLM"; }
  bool has_experts() const override { return true; }
  ModelSwitches switches() const override { return {.qk_norm = true}; }
  void set_switches(ModelConfig& config) const override {
    LlamaLike::set_switches(config);
    config.moe = with_sizes_of(config.moe, {});
  }
  void copy_fields(const ModelSwitches& from, bool /*own*/, ModelSwitches& to) const override {
    to.qkv_bias = from.qkv_bias;
    to.attention_output_bias = from.qkv_bias;
  }

 protected:
  Defaults defaults() const override {
    return {.max_position_embeddings = 32768, .key_value_heads = 4};
  }

  void read_own(const ConfigFields& fields, ModelConfig& config,
                std::vector<std::string>& /*notes*/) const override {
    config.qkv_bias = fields.flag("attention_bias", false);
    config.attention_output_bias = config.qkv_bias;
    const bool has_window = fields.flag("use_sliding_window", false) &&
                            (fields.has("sliding_window") || !fields.mentions("sliding_window"));
    config.sliding_window = has_window ? fields.extent("sliding_window", 4096) : 0;
    // transformers 5 writes num_local_experts.
    config.moe = {.experts = fields.extent(
                      fields.has("num_experts") ? "num_experts" : "num_local_experts", 128),
                  .per_token = fields.extent("num_experts_per_tok", 8),
                  .width = fields.extent("moe_intermediate_size", 768),
                  .normalizes = fields.flag("norm_topk_prob", false)};
    const int64_t step = fields.extent("decoder_sparse_step", 1);
    const std::vector<int64_t> dense = fields.ids("mlp_only_layers");
    for (int64_t block = 0; block < config.num_hidden_layers; ++block) {
      if ((block + 1) % step != 0 || std::ranges::find(dense, block) != dense.end()) {
        config.dense_layers.push_back(block);
      }
    }
  }

  void write_own(const ModelConfig& config, bool /*own*/, ConfigObject& out) const override {
    set(out, "attention_bias", config.qkv_bias);
    set(out, "use_sliding_window", config.sliding_window > 0);
    set(out, "sliding_window", window_of(config));
    set(out, "num_experts", config.moe.experts);
    set(out, "num_experts_per_tok", config.moe.per_token);
    set(out, "moe_intermediate_size", config.moe.width);
    set(out, "norm_topk_prob", config.moe.normalizes);
    set(out, "mlp_only_layers", config.dense_layers);
  }

  bool is_standard_shape(const ModelConfig& config) const override {
    return config.sliding_window == 0 || config.first_window_layer == 0;
  }
  bool computes_experts(const ModelConfig& config) const override {
    const MoeShape& moe = config.moe;
    return moe == MoeShape{.experts = moe.experts,
                           .per_token = moe.per_token,
                           .width = moe.width,
                           .normalizes = moe.normalizes};
  }
};

}  // namespace

const ModelFamily& qwen3_moe_family() {
  static const Qwen3Moe kFamily;
  return kFamily;
}

}  // namespace fp8train
