// Mistral (huggingface/transformers: src/transformers/models/mistral): Llama without biases, with a
// window over keys in all layers.

#include "model/families/hf_fields.h"
#include "model/families/llama_like.h"

namespace fp8train {
namespace {

class Mistral : public LlamaLike {
 public:
  std::string_view name() const override { return "mistral"; }
  std::string_view architecture() const override { return "MistralForCausalLM"; }
  std::string_view gguf_architecture(const ModelConfig& config) const override {
    return is_standard(config) ? "llama" : "";  // llama.cpp computes Mistral as Llama
  }
  bool gguf_has_neighbour_rope() const override { return true; }

 protected:
  Defaults defaults() const override {
    return {.max_position_embeddings = 131072, .key_value_heads = 8};
  }

  void read_own(const ConfigFields& fields, ModelConfig& config,
                std::vector<std::string>& /*notes*/) const override {
    constexpr int64_t kUpstreamWindow = 4096;
    const bool has_window = fields.has("sliding_window") || !fields.mentions("sliding_window");
    config.sliding_window = has_window ? fields.extent("sliding_window", kUpstreamWindow) : 0;
  }

  void write_own(const ModelConfig& config, bool /*own*/, ConfigObject& out) const override {
    set(out, "sliding_window", window_of(config));
  }

  bool is_standard_shape(const ModelConfig& config) const override {
    return config.sliding_window == 0 || config.first_window_layer == 0;
  }
};

}  // namespace

const ModelFamily& mistral_family() {
  static const Mistral kFamily;
  return kFamily;
}

}  // namespace fp8train
