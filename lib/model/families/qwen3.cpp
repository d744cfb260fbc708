// Qwen3 (huggingface/transformers: src/transformers/models/qwen3): Llama with RMSNorm over each
// head of q and k, and a head size that does not follow from the width.

#include "model/families/hf_fields.h"
#include "model/families/llama_like.h"

namespace fp8train {
namespace {

class Qwen3 : public LlamaLike {
 public:
  std::string_view name() const override { return "qwen3"; }
  std::string_view architecture() const override { return "Qwen3ForCausalLM"; }
  /// llama.cpp knows no biases of Qwen3.
  std::string_view gguf_architecture(const ModelConfig& config) const override {
    const bool known = is_standard(config) && !config.qkv_bias && !has_gguf_rope_factors(config);
    return known ? "qwen3" : "";
  }
  ModelSwitches switches() const override { return {.qk_norm = true}; }
  void copy_fields(const ModelSwitches& from, bool /*own*/, ModelSwitches& to) const override {
    to.qkv_bias = from.qkv_bias;
    to.attention_output_bias = from.qkv_bias;
  }

 protected:
  Defaults defaults() const override {
    return {.max_position_embeddings = 32768, .key_value_heads = 32, .head_dim = 128};
  }

  void read_own(const ConfigFields& fields, ModelConfig& config,
                std::vector<std::string>& /*notes*/) const override {
    config.qkv_bias = fields.flag("attention_bias", false);
    config.attention_output_bias = config.qkv_bias;
    read_layer_windows(fields, config);
  }

  void write_own(const ModelConfig& config, bool /*own*/, ConfigObject& out) const override {
    set(out, "attention_bias", config.qkv_bias);
    write_layer_windows(config, out);
  }
};

}  // namespace

const ModelFamily& qwen3_family() {
  static const Qwen3 kFamily;
  return kFamily;
}

}  // namespace fp8train
