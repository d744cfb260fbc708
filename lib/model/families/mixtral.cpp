// Mixtral (huggingface/transformers: src/transformers/models/mixtral): Mistral with experts in all
// blocks, whose inner width is "intermediate_size".

#include "model/families/hf_fields.h"
#include "model/families/llama_like.h"

namespace fp8train {
namespace {

class Mixtral : public LlamaLike {
 public:
  std::string_view name() const override { return "mixtral"; }
  std::string_view architecture() const override { return "MixtralForCausalLM"; }
  bool has_experts() const override { return true; }
  void set_switches(ModelConfig& config) const override {
    LlamaLike::set_switches(config);
    config.moe = with_sizes_of(config.moe, {});
  }

 protected:
  Defaults defaults() const override {
    return {.max_position_embeddings = 131072,
            .key_value_heads = 8,
            .norm_eps = 1e-5,
            .rope_theta = 1e6};
  }
  ExpertNames expert_names() const override { return {"block_sparse_moe", "w1", "w3", "w2"}; }

  void read_own(const ConfigFields& fields, ModelConfig& config,
                std::vector<std::string>& notes) const override {
    config.sliding_window = fields.has("sliding_window") ? fields.extent("sliding_window") : 0;
    config.moe = {.experts = fields.extent("num_local_experts", 8),
                  .per_token = fields.extent("num_experts_per_tok", 2),
                  .width = config.intermediate_size};
    if (fields.number("router_jitter_noise", 0.0) != 0.0) {
      notes.emplace_back("'router_jitter_noise' is ignored: routers have no noise");
    }
  }

  void write_own(const ModelConfig& config, bool /*own*/, ConfigObject& out) const override {
    set(out, "sliding_window", window_of(config));
    set(out, "num_local_experts", config.moe.experts);
    set(out, "num_experts_per_tok", config.moe.per_token);
  }

  bool is_standard_shape(const ModelConfig& config) const override {
    return config.sliding_window == 0 || config.first_window_layer == 0;
  }
  bool computes_experts(const ModelConfig& config) const override {
    const MoeShape& moe = config.moe;
    return config.dense_layers.empty() &&
           moe == MoeShape{.experts = moe.experts, .per_token = moe.per_token, .width = moe.width};
  }
};

}  // namespace

const ModelFamily& mixtral_family() {
  static const Mixtral kFamily;
  return kFamily;
}

}  // namespace fp8train
