#include "model/model_config.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "model/decoder.h"
#include "model/families/family.h"

using namespace fp8train;
using Catch::Contains;

namespace {

ModelConfig llama_8b() {
  ModelConfig config;
  config.vocab_size = 128256;
  config.hidden_size = 4096;
  config.intermediate_size = 14336;
  config.num_hidden_layers = 32;
  config.num_attention_heads = 32;
  config.num_key_value_heads = 8;
  config.max_position_embeddings = 8192;
  return config;
}

ModelConfig gpt2_124m() {
  ModelConfig config;
  config.family = &gpt2_family();
  config.vocab_size = 50257;
  config.hidden_size = 768;
  config.num_hidden_layers = 12;
  config.num_attention_heads = 12;
  config.max_position_embeddings = 1024;
  config.norm = NormKind::layer_norm;
  config.mlp = MlpKind::gelu;
  config.positions = PositionKind::learned;
  config.tie_word_embeddings = true;
  config.qkv_bias = config.attention_output_bias = config.mlp_bias = true;
  return config;
}

}  // namespace

TEST_CASE("parameter counts are the published ones") {
  CHECK(parameter_count(completed(llama_8b())) == 8030261248);
  CHECK(parameter_count(completed(gpt2_124m())) == 124439808);
}

TEST_CASE("FLOPs of a token: six per GEMM weight and the causal half of attention") {
  const ModelConfig config = completed(gpt2_124m());
  const double weights = 12.0 * (768.0 * 2304 + 768.0 * 768 + 2.0 * 768 * 3072) + 50257.0 * 768;
  CHECK(flops_per_token(config, 1024) == Approx(6 * weights + 6.0 * 12 * 768 * 1024));
}

TEST_CASE("missing sizes follow from the others, impossible ones are named") {
  const ModelConfig gpt2 = completed(gpt2_124m());
  CHECK(gpt2.head_dim == 64);
  CHECK(gpt2.num_key_value_heads == 12);
  CHECK(gpt2.intermediate_size == 3072);
  const auto broken = [](auto change) {
    ModelConfig config = llama_8b();
    change(config);
    return config;
  };
  CHECK_THROWS_WITH(completed(broken([](auto& c) { c.hidden_size = 0; })), Contains("hidden_size"));
  CHECK_THROWS_WITH(completed(broken([](auto& c) { c.head_dim = 15; })),
                    Contains("head_dim 15 is odd; attention takes its elements in pairs"));
  CHECK_THROWS_WITH(completed(broken([](auto& c) { c.num_key_value_heads = 5; })),
                    Contains("num_key_value_heads 5"));
  CHECK_THROWS_WITH(completed(broken([](auto& c) { c.num_attention_heads = 48; })),
                    Contains("num_attention_heads 48"));
  CHECK_THROWS_WITH(completed(broken([](auto& c) { c.intermediate_size = 0; })),
                    Contains("intermediate_size"));
}

TEST_CASE("the vocabulary is stored in multiples of 16 rows") {
  CHECK(padded_vocabulary(completed(gpt2_124m())) == 50272);
  CHECK(padded_vocabulary(completed(llama_8b())) == 128256);
}
