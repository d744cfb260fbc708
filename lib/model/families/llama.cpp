// Llama (huggingface/transformers: src/transformers/models/llama). Models that no class in
// transformers computes, with any mix of biases and norms of q and k, are written under a name of
// our own.

#include <algorithm>

#include "model/families/hf_fields.h"
#include "model/families/llama_like.h"

namespace fp8train {
namespace {

class Llama : public LlamaLike {
 public:
  std::string_view name() const override { return "llama"; }
  std::string_view architecture() const override { return "LlamaForCausalLM"; }
  std::string_view gguf_architecture(const ModelConfig& config) const override {
    return is_standard(config) ? "llama" : "";
  }
  bool gguf_has_neighbour_rope() const override { return true; }
  std::string_view own_architecture() const override { return "Fp8trainLlama"; }
  void copy_fields(const ModelSwitches& from, bool own, ModelSwitches& to) const override {
    to.qkv_bias = from.qkv_bias;
    to.attention_output_bias = own ? from.attention_output_bias : from.qkv_bias;
    to.mlp_bias = from.mlp_bias;
    to.qk_norm = own && from.qk_norm;
  }

 protected:
  void read_own(const ConfigFields& fields, ModelConfig& config,
                std::vector<std::string>& notes) const override {
    const bool attention_bias = fields.flag("attention_bias", false);
    config.qkv_bias = fields.flag("qkv_bias", attention_bias);
    config.attention_output_bias = fields.flag("attention_output_bias", attention_bias);
    config.qk_norm = fields.flag("qk_norm", false);
    config.mlp_bias = fields.flag("mlp_bias", false);
    const std::vector<std::string> types = layer_types(fields, config);
    const bool windowed_layers =
        std::any_of(types.begin(), types.end(),
                    [](const std::string& type) { return type != "full_attention"; });
    if (windowed_layers ||
        (fields.has("sliding_window") && fields.flag("use_sliding_window", true))) {
      fields.fail(
          "sliding-window attention is not implemented for LlamaForCausalLM ('sliding_window' or "
          "'layer_types' is in use)");
    }
    if (fields.number("pretraining_tp", 1.0) != 1.0) {
      notes.emplace_back("'pretraining_tp' is ignored: it only changes the order of sums");
    }
  }

  void write_own(const ModelConfig& config, bool own, ConfigObject& out) const override {
    if (own) {
      set(out, "qk_norm", config.qk_norm);
      set(out, "qkv_bias", config.qkv_bias);
      set(out, "attention_output_bias", config.attention_output_bias);
    }
    set(out, "attention_bias", config.qkv_bias);
    set(out, "mlp_bias", config.mlp_bias);
  }

  bool is_standard_shape(const ModelConfig& config) const override {
    return config.sliding_window == 0;
  }
};

}  // namespace

const ModelFamily& llama_family() {
  static const Llama kFamily;
  return kFamily;
}

}  // namespace fp8train
