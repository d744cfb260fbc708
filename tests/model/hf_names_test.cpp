#include "model/hf_names.h"

#include <catch2/catch.hpp>

#include <set>

#include "model/decoder.h"

using namespace fp8train;

namespace {

ModelConfig small(ModelFamily family) {
  ModelConfig config;
  config.family = family;
  config.vocab_size = 33;
  config.hidden_size = 16;
  config.intermediate_size = 24;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = family == ModelFamily::llama ? 2 : 4;
  config.max_position_embeddings = 8;
  if (family == ModelFamily::gpt2) {
    config.norm = NormKind::layer_norm;
    config.mlp = MlpKind::gelu;
    config.positions = PositionKind::learned;
    config.qkv_bias = config.attention_output_bias = config.mlp_bias = true;
  }
  return completed(config);
}

}  // namespace

TEST_CASE("the pieces of every parameter cover its used rows once, with names of their own") {
  const ModelFamily family = GENERATE(ModelFamily::llama, ModelFamily::gpt2);
  const auto meta = make_device(DeviceKind::meta);
  Decoder model(*meta, small(family), plan_named("fp32"), {});
  std::set<std::string> names;
  for (const auto& parameter : model.parameters().all()) {
    int64_t next = 0;
    for (const HfPiece& piece : hf_pieces(model.config(), parameter->name)) {
      CHECK(piece.begin == next);
      next += piece.rows;
      CHECK(names.insert(piece.name).second);
    }
    CHECK(next == parameter->used_rows);
  }
  if (family == ModelFamily::llama) {
    CHECK(names.count("model.layers.1.self_attn.k_proj.weight") == 1);
    CHECK(names.count("model.layers.0.mlp.gate_proj.weight") == 1);
    CHECK(names.count("lm_head.weight") == 1);
  } else {
    CHECK(names.count("transformer.h.1.attn.c_attn.bias") == 1);
    CHECK(names.count("transformer.wpe.weight") == 1);
  }
}

TEST_CASE("GPT-2 stores weights of linears transposed, nothing else") {
  const ModelConfig config = small(ModelFamily::gpt2);
  CHECK(hf_pieces(config, "layers.0.mlp.up.weight").front().transposed);
  CHECK_FALSE(hf_pieces(config, "layers.0.mlp.up.bias").front().transposed);
  CHECK_FALSE(hf_pieces(config, "embedding.weight").front().transposed);
  CHECK_FALSE(hf_pieces(config, "layers.0.attention_norm.weight").front().transposed);
}
