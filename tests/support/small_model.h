#pragma once
// The models of tests whose numbers do not matter: two blocks, every dimension a multiple of 16,
// and a vocabulary that is padded. A test that needs another size changes that one.

#include <cstdint>

#include "model/families/family.h"
#include "model/model_config.h"

namespace fp8train::test {

constexpr uint32_t kSmallVocabulary = 50;

/// Llama with grouped queries.
inline ModelConfig small_llama_model() {
  ModelConfig model;
  model.vocab_size = kSmallVocabulary;
  model.hidden_size = 32;
  model.intermediate_size = 64;
  model.num_hidden_layers = 2;
  model.num_attention_heads = 2;
  model.num_key_value_heads = 1;
  model.max_position_embeddings = 32;
  return completed(model);
}

/// A small model of a family with four experts in its second block, or in both.
inline ModelConfig small_moe_model(const ModelFamily& family) {
  ModelConfig model = small_llama_model();
  model.family = &family;
  model.moe = {.experts = 4, .per_token = 2, .width = 48};
  family.set_switches(model);
  if (&family != &mixtral_family()) {
    model.dense_layers = {0};
    model.moe.shared_width = &family == &dots1_family() ? 96 : 0;
  }
  return completed(model);
}

/// GPT-2: layer norms, biases, learned positions, GELU and a tied head.
inline ModelConfig small_gpt2_model() {
  ModelConfig model;
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
  return completed(model);
}

}  // namespace fp8train::test
