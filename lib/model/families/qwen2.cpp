// Qwen2 and Qwen2.5 (huggingface/transformers: src/transformers/models/qwen2): Llama with biases on
// the q, k and v projections.

#include "model/families/hf_fields.h"
#include "model/families/llama_like.h"

namespace fp8train {
namespace {

class Qwen2 : public LlamaLike {
 public:
  std::string_view name() const override { return "qwen2"; }
  std::string_view architecture() const override { return "Qwen2ForCausalLM"; }
  std::string_view gguf_architecture(const ModelConfig& config) const override {
    return is_standard(config) && !has_gguf_rope_factors(config) ? "qwen2" : "";
  }
  ModelSwitches switches() const override { return {.qkv_bias = true}; }

 protected:
  Defaults defaults() const override {
    return {.max_position_embeddings = 32768, .key_value_heads = 32};
  }

  void read_own(const ConfigFields& fields, ModelConfig& config,
                std::vector<std::string>& /*notes*/) const override {
    read_layer_windows(fields, config);
  }

  void write_own(const ModelConfig& config, bool /*own*/, ConfigObject& out) const override {
    write_layer_windows(config, out);
  }
};

}  // namespace

const ModelFamily& qwen2_family() {
  static const Qwen2 kFamily;
  return kFamily;
}

}  // namespace fp8train
