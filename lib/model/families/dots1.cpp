// dots.llm1 (huggingface/transformers: src/transformers/models/dots1): the attention of Qwen3, with
// sigmoid scores, groups of experts and a bias of the choice (arXiv 2412.19437). Models with
// experts that no class in transformers computes are written under a name of our own.

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "model/families/hf_fields.h"
#include "model/families/llama_like.h"

namespace fp8train {
namespace {

std::vector<int64_t> first_layers(int64_t count) {
  std::vector<int64_t> layers(static_cast<size_t>(count));
  std::iota(layers.begin(), layers.end(), 0);
  return layers;
}

class Dots1 : public LlamaLike {
 public:
  std::string_view name() const override { return "dots1"; }
  std::string_view architecture() const override { return "Dots1ForCausalLM"; }
  std::string_view own_architecture() const override { return "Fp8trainDots1"; }
  bool has_experts() const override { return true; }
  ModelSwitches switches() const override { return {.qk_norm = true}; }
  void set_switches(ModelConfig& config) const override {
    LlamaLike::set_switches(config);
    config.moe = with_sizes_of(config.moe, {.score = RouterScore::sigmoid, .has_bias = true});
  }
  void copy_fields(const ModelSwitches& from, bool own, ModelSwitches& to) const override {
    to.qkv_bias = from.qkv_bias;
    to.attention_output_bias = own ? from.attention_output_bias : from.qkv_bias;
    to.qk_norm = !own || from.qk_norm;
  }

 protected:
  void read_own(const ConfigFields& fields, ModelConfig& config,
                std::vector<std::string>& /*notes*/) const override {
    constexpr int64_t kUpstreamFirstWindow = 62;
    config.qkv_bias = fields.flag("attention_bias", false);
    config.attention_output_bias = fields.flag("attention_output_bias", config.qkv_bias);
    config.qk_norm = fields.flag("qk_norm", true);
    read_layer_windows(fields, config, true, kUpstreamFirstWindow);
    const std::string score = fields.text("scoring_func", "sigmoid");
    if (score != "sigmoid" && score != "softmax") {
      fields.fail(
          fmt::format("scoring_func '{}' is not implemented; known: sigmoid, softmax", score));
    }
    const int64_t width = fields.extent("moe_intermediate_size", 1408);
    config.moe = {.experts = fields.extent("n_routed_experts"),
                  .per_token = fields.extent("num_experts_per_tok"),
                  .width = width,
                  .shared_width = fields.count("shared_expert_intermediate_size",
                                               width * fields.count("n_shared_experts", 0)),
                  .groups = fields.extent("n_group", 1),
                  .groups_per_token = fields.extent("topk_group", 1),
                  .score = score == "softmax" ? RouterScore::softmax : RouterScore::sigmoid,
                  .normalizes = fields.flag("norm_topk_prob", false),
                  .has_bias = fields.flag("e_score_correction_bias", true),
                  .scale = static_cast<float>(fields.positive("routed_scaling_factor", 1.0))};
    config.dense_layers = fields.has("dense_layers")
                              ? fields.ids("dense_layers")
                              : first_layers(std::min(fields.count("first_k_dense_replace", 0),
                                                      config.num_hidden_layers));
  }

  void write_own(const ModelConfig& config, bool own, ConfigObject& out) const override {
    const MoeShape& moe = config.moe;
    set(out, "attention_bias", config.qkv_bias);
    set(out, "sliding_window", window_of(config));
    set(out, "max_window_layers",
        config.sliding_window > 0 ? config.first_window_layer : config.num_hidden_layers);
    set(out, "n_routed_experts", moe.experts);
    set(out, "num_experts_per_tok", moe.per_token);
    set(out, "moe_intermediate_size", moe.width);
    set(out, "n_group", moe.groups);
    set(out, "topk_group", moe.groups_per_token);
    set(out, "norm_topk_prob", moe.normalizes);
    set(out, "routed_scaling_factor", decimal_of(moe.scale));
    if (own) {
      set(out, "attention_output_bias", config.attention_output_bias);
      set(out, "qk_norm", config.qk_norm);
      set(out, "scoring_func", moe.score == RouterScore::softmax ? "softmax" : "sigmoid");
      set(out, "e_score_correction_bias", moe.has_bias);
      set(out, "shared_expert_intermediate_size", moe.shared_width);
      set(out, "dense_layers", config.dense_layers);
    } else {
      set(out, "n_shared_experts", moe.shared_width / moe.width);
      set(out, "first_k_dense_replace", static_cast<int64_t>(config.dense_layers.size()));
    }
  }

  bool computes_experts(const ModelConfig& config) const override {
    const MoeShape& moe = config.moe;
    return moe.score == RouterScore::sigmoid && moe.has_bias && moe.width > 0 &&
           moe.shared_width > 0 && moe.shared_width % moe.width == 0 &&
           config.dense_layers == first_layers(std::ssize(config.dense_layers));
  }
};

}  // namespace

const ModelFamily& dots1_family() {
  static const Dots1 kFamily;
  return kFamily;
}

}  // namespace fp8train
