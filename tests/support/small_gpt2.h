#pragma once
// The model of tests that train with layer norms, biases, learned positions and GELU: GPT-2 of the
// sizes of small_llama().

#include <string>

#include "model/families/family.h"
#include "support/small_llama.h"

namespace fp8train::test {

inline EngineSettings small_gpt2(const std::string& plan) {
  EngineSettings settings = small_llama(plan);
  ModelConfig& model = settings.model;
  model = {};
  model.family = &gpt2_family();
  model.vocab_size = kSmallVocabulary;
  model.hidden_size = 32;
  model.intermediate_size = 128;
  model.num_hidden_layers = 2;
  model.num_attention_heads = 2;
  model.num_key_value_heads = 2;
  model.max_position_embeddings = 32;
  model.norm = NormKind::layer_norm;
  model.positions = PositionKind::learned;
  model.mlp = MlpKind::gelu;
  model.qkv_bias = model.attention_output_bias = model.mlp_bias = model.norm_bias = true;
  model.tie_word_embeddings = true;
  model = completed(model);
  return settings;
}

}  // namespace fp8train::test
