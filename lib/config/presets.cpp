#include "config/presets.h"

#include "model/families/family.h"

namespace fp8train {
namespace {

struct LlamaShape {
  int64_t layers, width, heads, kv_heads, mlp, vocab, context;
};

ModelConfig llama(const LlamaShape& shape) {
  ModelConfig config;
  config.vocab_size = shape.vocab;
  config.hidden_size = shape.width;
  config.intermediate_size = shape.mlp;
  config.num_hidden_layers = shape.layers;
  config.num_attention_heads = shape.heads;
  config.num_key_value_heads = shape.kv_heads;
  config.head_dim = shape.width / shape.heads;
  config.max_position_embeddings = shape.context;
  return config;
}

/// Llama 3.1 and 3.2: the vocabulary's special tokens and the stretched rotary frequencies.
ModelConfig llama3(const LlamaShape& shape, double rope_factor) {
  ModelConfig config = llama(shape);
  config.rope_theta = 500000.0;
  config.rope_scaling = llama3_rope_scaling(rope_factor);
  config.bos_token_id = 128000;
  config.eos_token_id = 128001;
  return config;
}

ModelConfig gpt2(int64_t layers, int64_t width, int64_t heads, int64_t vocab, int64_t context,
                 bool biases) {
  ModelConfig config = llama({layers, width, heads, heads, 4 * width, vocab, context});
  config.family = &gpt2_family();
  config.family->set_switches(config);
  config.qkv_bias = biases;
  config.attention_output_bias = biases;
  config.mlp_bias = biases;
  config.norm_bias = biases;
  return config;
}

ModelConfig gpt2_124m() {
  ModelConfig config = gpt2(12, 768, 12, 50257, 1024, true);
  config.bos_token_id = 50256;
  config.eos_token_id = 50256;
  return config;
}

ModelConfig llama_42m() {
  ModelConfig config = llama({8, 512, 8, 4, 1536, 32000, 1024});
  config.tie_word_embeddings = true;
  config.bos_token_id = 1;
  config.eos_token_id = 2;
  return config;
}

ModelConfig llama_1b() {
  ModelConfig config = llama3({16, 2048, 32, 8, 8192, 128256, 131072}, 32.0);
  config.tie_word_embeddings = true;
  return config;
}

/// huggingface.co/Qwen/Qwen3-0.6B: config.json.
ModelConfig qwen3_600m() {
  ModelConfig config = llama({28, 1024, 16, 8, 3072, 151936, 40960});
  config.family = &qwen3_family();
  config.family->set_switches(config);
  config.head_dim = 128;
  config.norm_eps = 1e-6F;
  config.rope_theta = 1e6;
  config.tie_word_embeddings = true;
  config.bos_token_id = 151643;
  config.eos_token_id = 151645;
  return config;
}

/// huggingface.co/mistralai/Mistral-7B-v0.3: config.json.
ModelConfig mistral_7b() {
  ModelConfig config = llama({32, 4096, 32, 8, 14336, 32768, 32768});
  config.family = &mistral_family();
  config.rope_theta = 1e6;
  config.bos_token_id = 1;
  config.eos_token_id = 2;
  return config;
}

/// Qwen3's model in experts: each token uses `per_token` of them.
ModelConfig qwen3_moe(ModelConfig config, const MoeShape& moe) {
  config.family = &qwen3_moe_family();
  config.family->set_switches(config);
  config.moe = moe;
  return config;
}

/// huggingface.co/Qwen/Qwen3-30B-A3B: config.json.
ModelConfig qwen3_30b_a3b() {
  ModelConfig config = qwen3_moe(llama({48, 2048, 32, 4, 768, 151936, 40960}),
                                 {.experts = 128, .per_token = 8, .width = 768});
  config.head_dim = 128;
  config.norm_eps = 1e-6F;
  config.rope_theta = 1e6;
  config.bos_token_id = 151643;
  config.eos_token_id = 151645;
  return config;
}

/// huggingface.co/mistralai/Mixtral-8x7B-v0.1: config.json.
ModelConfig mixtral_8x7b() {
  ModelConfig config = llama({32, 4096, 32, 8, 14336, 32000, 32768});
  config.family = &mixtral_family();
  config.moe = {.experts = 8, .per_token = 2, .width = 14336};
  config.rope_theta = 1e6;
  config.bos_token_id = 1;
  config.eos_token_id = 2;
  return config;
}

}  // namespace

const std::vector<Preset>& presets() {
  static const std::vector<Preset> kPresets = {
      {"toy", "2 Llama layers, 64 wide; for smoke tests", llama({2, 64, 4, 2, 192, 0, 64}), 64},
      {"toy-moe", "the same with 8 experts, of which a token uses 2",
       qwen3_moe(llama({2, 64, 4, 2, 96, 0, 64}), {.experts = 8, .per_token = 2, .width = 96}), 64,
       0.01},
      {"nanogpt-laptop", "nanoGPT's character model for a CPU: 4 GPT-2 layers, 128 wide, no biases",
       gpt2(4, 128, 4, 0, 64, false), 64},
      {"gpt2-124m", "GPT-2 small", gpt2_124m(), 1024},
      {"llama-42m", "8 Llama layers, 512 wide, grouped-query attention", llama_42m(), 1024},
      {"qwen3-0.6b", "Qwen3 0.6B", qwen3_600m(), 8192},
      {"llama-1b", "Llama 3.2 1B", llama_1b(), 8192},
      {"mistral-7b", "Mistral 7B v0.3", mistral_7b(), 8192},
      {"qwen3-30b-a3b", "Qwen3 30B-A3B, 128 experts", qwen3_30b_a3b(), 8192, 0.001},
      {"mixtral-8x7b", "Mixtral 8x7B v0.1, 8 experts", mixtral_8x7b(), 8192, 0.01},
      {"llama-8b", "Llama 3.1 8B", llama3({32, 4096, 32, 8, 14336, 128256, 131072}, 8.0), 8192},
      {"llama-70b", "Llama 3.1 70B", llama3({80, 8192, 64, 8, 28672, 128256, 131072}, 8.0), 8192},
      {"llama-405b", "Llama 3.1 405B", llama3({126, 16384, 128, 8, 53248, 128256, 131072}, 8.0),
       8192},
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
