#include "config/presets.h"

#include "model/families/family.h"

namespace fp8train {
namespace {

struct Sizes {
  int64_t layers, width, heads, kv_heads, mlp, vocab, context;
};

/// Everything else of a config.json.
struct Details {
  const ModelFamily& (*family)() = llama_family;
  bool without_biases = false;
  int64_t head_dim = 0;  ///< 0: width / heads
  float norm_eps = 1e-5F;
  double rope_theta = 10000.0;
  double llama3_factor = 0.0;  ///< stretches frequencies as Llama 3 does; 0: no stretch
  bool tied = false;
  int64_t bos = -1;
  int64_t eos = -1;
  MoeShape moe = {};
};

ModelConfig model(const Sizes& sizes, const Details& details = {}) {
  ModelConfig config;
  config.family = &details.family();
  config.vocab_size = sizes.vocab;
  config.hidden_size = sizes.width;
  config.intermediate_size = sizes.mlp;
  config.num_hidden_layers = sizes.layers;
  config.num_attention_heads = sizes.heads;
  config.num_key_value_heads = sizes.kv_heads;
  config.head_dim = details.head_dim > 0 ? details.head_dim : sizes.width / sizes.heads;
  config.max_position_embeddings = sizes.context;
  config.norm_eps = details.norm_eps;
  config.rope_theta = details.rope_theta;
  if (details.llama3_factor > 0) {
    config.rope_scaling = llama3_rope_scaling(details.llama3_factor);
  }
  config.tie_word_embeddings = details.tied;
  config.bos_token_id = details.bos;
  config.eos_token_id = details.eos;
  config.moe = details.moe;
  config.family->set_switches(config);
  if (details.without_biases) {
    config.qkv_bias = config.attention_output_bias = config.mlp_bias = config.norm_bias = false;
  }
  return config;
}

/// Llama 3.1 and 3.2: the vocabulary's special tokens and the stretched rotary frequencies.
Details llama3(double factor, bool tied = false) {
  return {
      .rope_theta = 500000.0, .llama3_factor = factor, .tied = tied, .bos = 128000, .eos = 128001};
}

/// huggingface.co/Qwen/Qwen3-0.6B and Qwen3-30B-A3B: config.json.
Details qwen3(Details own) {
  own.head_dim = 128;
  own.norm_eps = 1e-6F;
  own.rope_theta = 1e6;
  own.bos = 151643;
  own.eos = 151645;
  return own;
}

/// huggingface.co/mistralai/Mistral-7B-v0.3 and Mixtral-8x7B-v0.1: config.json.
Details mistral(Details own) {
  own.rope_theta = 1e6;
  own.bos = 1;
  own.eos = 2;
  return own;
}

/// Qwen3's blocks with experts, of which a token uses `per_token`.
Details qwen3_experts(int64_t experts, int64_t per_token, int64_t width) {
  return {.family = qwen3_moe_family,
          .moe = {.experts = experts, .per_token = per_token, .width = width}};
}

}  // namespace

const std::vector<Preset>& presets() {
  static const std::vector<Preset> kPresets = {
      {"toy", "2 Llama layers, 64 wide; for smoke tests", model({2, 64, 4, 2, 192, 0, 64}), 64},
      {"toy-moe", "the same with 8 experts, of which a token uses 2",
       model({2, 64, 4, 2, 96, 0, 64}, qwen3_experts(8, 2, 96)), 64, 0.01},
      {"nanogpt-laptop", "nanoGPT's character model for a CPU: 4 GPT-2 layers, 128 wide, no biases",
       model({4, 128, 4, 4, 512, 0, 64}, {.family = gpt2_family, .without_biases = true}), 64},
      {"gpt2-124m", "GPT-2 small",
       model({12, 768, 12, 12, 3072, 50257, 1024},
             {.family = gpt2_family, .bos = 50256, .eos = 50256}),
       1024},
      {"llama-42m", "8 Llama layers, 512 wide, grouped-query attention",
       model({8, 512, 8, 4, 1536, 32000, 1024}, {.tied = true, .bos = 1, .eos = 2}), 1024},
      {"qwen3-0.6b", "Qwen3 0.6B",
       model({28, 1024, 16, 8, 3072, 151936, 40960}, qwen3({.family = qwen3_family, .tied = true})),
       8192},
      {"llama-1b", "Llama 3.2 1B",
       model({16, 2048, 32, 8, 8192, 128256, 131072}, llama3(32.0, true)), 8192},
      {"mistral-7b", "Mistral 7B v0.3",
       model({32, 4096, 32, 8, 14336, 32768, 32768}, mistral({.family = mistral_family})), 8192},
      {"qwen3-30b-a3b", "Qwen3 30B-A3B, 128 experts",
       model({48, 2048, 32, 4, 768, 151936, 40960}, qwen3(qwen3_experts(128, 8, 768))), 8192,
       0.001},
      {"mixtral-8x7b", "Mixtral 8x7B v0.1, 8 experts",
       model({32, 4096, 32, 8, 14336, 32000, 32768},
             mistral({.family = mixtral_family,
                      .moe = {.experts = 8, .per_token = 2, .width = 14336}})),
       8192, 0.01},
      {"llama-8b", "Llama 3.1 8B", model({32, 4096, 32, 8, 14336, 128256, 131072}, llama3(8.0)),
       8192},
      {"llama-70b", "Llama 3.1 70B", model({80, 8192, 64, 8, 28672, 128256, 131072}, llama3(8.0)),
       8192},
      {"llama-405b", "Llama 3.1 405B",
       model({126, 16384, 128, 8, 53248, 128256, 131072}, llama3(8.0)), 8192},
  };
  return kPresets;
}

const Preset* find_preset(const std::string& name) {
  for (const Preset& preset : presets()) {
    if (preset.name == name) {
      return &preset;
    }
  }
  return nullptr;
}

void apply_preset(const Preset& preset, Settings& settings) {
  settings.model.preset = preset.name;
  settings.model.config = preset.config;
  settings.step.seq_length = preset.seq_length;
  settings.step.decoder.moe.balance_loss = preset.balance_loss;
}

}  // namespace fp8train
