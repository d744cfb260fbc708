#include "model/hf_names.h"

#include <catch2/catch.hpp>

#include <set>

#include "model/decoder.h"
#include "model/families/family.h"
#include "support/small_model.h"

using namespace fp8train;

namespace {

ModelConfig small(const ModelFamily& family) {
  if (family.has_experts()) {
    return test::small_moe_model(family);
  }
  const bool is_gpt2 = &family == &gpt2_family();
  ModelConfig config = is_gpt2 ? test::small_gpt2_model() : test::small_llama_model();
  config.family = &family;
  family.set_switches(config);
  config.tie_word_embeddings = false;
  return completed(config);
}

}  // namespace

TEST_CASE("the pieces of every parameter cover its used rows once, with names of their own") {
  const ModelFamily& family = *GENERATE(from_range(families()));
  CAPTURE(family.name());
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
}

TEST_CASE("a family assigns every switch, and its class computes no other than it has or writes") {
  const ModelFamily& family = *GENERATE(from_range(families()));
  CAPTURE(family.name());
  ModelConfig config = small(family);
  CHECK(family.is_standard(config));
  config.qk_norm = !config.qk_norm;
  CHECK_FALSE(family.is_standard(config));
  const bool gated = config.mlp == MlpKind::swiglu;
  config.norm = gated ? NormKind::layer_norm : NormKind::rms_norm;
  config.mlp = gated ? MlpKind::gelu : MlpKind::swiglu;
  config.positions = gated ? PositionKind::learned : PositionKind::rope;
  for (bool ModelSwitches::*bias : {&ModelSwitches::qkv_bias, &ModelSwitches::attention_output_bias,
                                    &ModelSwitches::mlp_bias, &ModelSwitches::norm_bias}) {
    config.*bias = !(config.*bias);
  }
  family.set_switches(config);
  CHECK(static_cast<const ModelSwitches&>(config) == family.switches());
  CHECK(family.is_standard(config));
}

TEST_CASE("tensors of families have the names of transformers") {
  struct Name {
    const ModelFamily& family;
    const char* parameter;
    std::vector<std::string> tensors;
  };
  const std::string prefix = "model.layers.1.self_attn.";
  const std::string mlp = "model.layers.1.mlp.", moe = "model.layers.1.block_sparse_moe.";
  const Name names[] = {
      {llama_family(),
       "layers.1.attention.qkv.weight",
       {prefix + "q_proj.weight", prefix + "k_proj.weight", prefix + "v_proj.weight"}},
      {qwen2_family(),
       "layers.1.attention.qkv.bias",
       {prefix + "q_proj.bias", prefix + "k_proj.bias", prefix + "v_proj.bias"}},
      {gpt2_family(), "layers.1.attention.qkv.bias", {"transformer.h.1.attn.c_attn.bias"}},
      {mistral_family(), "head.weight", {"lm_head.weight"}},
      {mixtral_family(), "layers.1.mlp.router.weight", {moe + "gate.weight"}},
      {mixtral_family(),
       "layers.1.mlp.experts.3.up.weight",
       {moe + "experts.3.w1.weight", moe + "experts.3.w3.weight"}},
      {mixtral_family(), "layers.1.mlp.experts.3.down.weight", {moe + "experts.3.w2.weight"}},
      {qwen3_moe_family(),
       "layers.1.mlp.experts.0.up.weight",
       {mlp + "experts.0.gate_proj.weight", mlp + "experts.0.up_proj.weight"}},
      {qwen3_moe_family(), "layers.0.mlp.down.weight", {"model.layers.0.mlp.down_proj.weight"}},
      {dots1_family(), "layers.1.mlp.router.bias", {mlp + "gate.e_score_correction_bias"}},
      {dots1_family(),
       "layers.1.mlp.shared.down.weight",
       {mlp + "shared_experts.down_proj.weight"}},
  };
  for (const Name& name : names) {
    std::vector<std::string> tensors;
    for (const HfPiece& piece : hf_pieces(small(name.family), name.parameter)) {
      tensors.push_back(piece.name);
    }
    CHECK(tensors == name.tensors);
  }
}

TEST_CASE("GPT-2 stores weights of linears transposed, nothing else") {
  const ModelConfig config = small(gpt2_family());
  CHECK(hf_pieces(config, "layers.0.mlp.up.weight").front().transposed);
  CHECK_FALSE(hf_pieces(config, "layers.0.mlp.up.bias").front().transposed);
  CHECK_FALSE(hf_pieces(config, "embedding.weight").front().transposed);
  CHECK_FALSE(hf_pieces(config, "layers.0.attention_norm.weight").front().transposed);
}

TEST_CASE("a folder may have its family's buffers, and the head where it is tied") {
  ModelConfig llama = small(llama_family());
  ModelConfig gpt2 = small(gpt2_family());
  const std::string rotary = "model.layers.0.self_attn.rotary_emb.inv_freq";
  CHECK(follows_from_config(llama, rotary));
  CHECK_FALSE(follows_from_config(gpt2, rotary));
  for (const char* mask : {"transformer.h.0.attn.bias", "transformer.h.0.attn.masked_bias"}) {
    CHECK(follows_from_config(gpt2, mask));
    CHECK_FALSE(follows_from_config(llama, mask));
  }
  for (ModelConfig* config : {&llama, &gpt2}) {
    CHECK_FALSE(follows_from_config(*config, "lm_head.weight"));
    config->tie_word_embeddings = true;
    CHECK(follows_from_config(*config, "lm_head.weight"));
    CHECK_FALSE(follows_from_config(*config, "model.norm.bias"));
  }
}
