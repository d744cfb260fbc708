#include "io/llama2c.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "data/tokenizer.h"
#include "io/export/row_order.h"
#include "io/hf_config.h"
#include "io/safetensors/tensor_source.h"
#include "support/files.h"
#include "support/temp_dir.h"

namespace fp8train {
namespace {

using Catch::Contains;
using test::message_of;

/// dim 8, hidden 3, 2 layers, 2 heads, 1 key-value head, vocab 5, 6 positions; values count up
/// through the file.
std::string model_bytes(int32_t vocab) {
  const int32_t header[] = {8, 3, 2, 2, 1, vocab, 6};
  const int64_t v = std::abs(vocab);
  const int64_t floats =
      v * 8 + 2 * (8 + 64 + 32 + 32 + 64 + 8 + 3 * 24) + 8 + 6 * 4 + (vocab < 0 ? v * 8 : 0);
  std::vector<float> values(static_cast<size_t>(floats));
  std::iota(values.begin(), values.end(), 0.0F);
  return std::string(reinterpret_cast<const char*>(header), sizeof(header)) +
         std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

const NamedTensor& tensor(const Llama2cModel& model, const std::string& name) {
  for (const NamedTensor& candidate : model.tensors) {
    if (candidate.name == name) return candidate;
  }
  FAIL("no tensor " << name);
  return model.tensors.front();
}

TEST_CASE("every tensor comes from its offset in the file") {
  const test::TempDir dir;
  test::write_file(dir / "m.bin", model_bytes(-5));
  const Llama2cModel model = read_llama2c(dir / "m.bin");
  CHECK(model.config.vocab_size == 5);
  CHECK_FALSE(model.config.tie_word_embeddings);
  CHECK(model.config.head_dim == 4);
  CHECK(model.config.num_key_value_heads == 1);
  CHECK(model.config.max_position_embeddings == 6);
  CHECK(model.tensors.size() == 3 + 2 * 9);
  const auto first = [&](const std::string& name) { return tensor(model, name).values.front(); };
  CHECK(first("model.embed_tokens.weight") == 0);
  CHECK(first("model.layers.1.input_layernorm.weight") == 48);
  CHECK(first("model.layers.0.self_attn.q_proj.weight") == 56);
  CHECK(first("model.layers.0.self_attn.k_proj.weight") == 184);
  CHECK(first("model.layers.1.self_attn.v_proj.weight") == 280);
  CHECK(first("model.layers.0.self_attn.o_proj.weight") == 312);
  CHECK(first("model.layers.0.post_attention_layernorm.weight") == 440);
  CHECK(first("model.layers.0.mlp.gate_proj.weight") == 456);
  CHECK(first("model.layers.0.mlp.down_proj.weight") == 504);
  CHECK(first("model.layers.0.mlp.up_proj.weight") == 552);
  CHECK(first("model.norm.weight") == 600);
  CHECK(first("lm_head.weight") == 632);
  CHECK(tensor(model, "model.layers.0.mlp.down_proj.weight").shape == std::vector<int64_t>{8, 3});
  CHECK(tensor(model, "model.layers.0.self_attn.k_proj.weight").shape ==
        std::vector<int64_t>{4, 8});
  // Rows 0..3 of the first head move to 0, 2, 1, 3: the even rows first.
  const auto& q = tensor(model, "model.layers.0.self_attn.q_proj.weight").values;
  CHECK(q[0] == 56);
  CHECK(q[8] == 56 + 16);
  CHECK(q[16] == 56 + 8);
  CHECK(q[24] == 56 + 24);
  CHECK(q[32] == 56 + 32);

  test::write_file(dir / "tied.bin", model_bytes(5));
  const Llama2cModel tied = read_llama2c(dir / "tied.bin");
  CHECK(tied.config.tie_word_embeddings);
  CHECK(tied.tensors.size() == 2 + 2 * 9);
}

TEST_CASE("half-split rows rotate like neighbouring rows") {
  // A head of 6 rows: RoPE on pairs (2j, 2j + 1) before equals RoPE on (j, j + 3) after.
  const std::vector<float> x = {1, 2, 3, 4, 5, 6};
  const std::vector<float> y = half_split_rope_rows(x, 1, 6);
  CHECK(y == std::vector<float>{1, 3, 5, 2, 4, 6});
  for (size_t j = 0; j < 3; ++j) {
    const float angle = 0.3F * static_cast<float>(j + 1);
    const float a = x[2 * j] * std::cos(angle) - x[2 * j + 1] * std::sin(angle);
    const float b = y[j] * std::cos(angle) - y[j + 3] * std::sin(angle);
    CHECK(a == b);
  }
}

TEST_CASE("damaged models are refused") {
  const test::TempDir dir;
  const auto refusal = [&](const std::string& bytes) {
    test::write_file(dir / "m.bin", bytes);
    return message_of<CheckpointError>([&] { read_llama2c(dir / "m.bin"); });
  };
  const std::string good = model_bytes(5);
  CHECK_THAT(refusal(good.substr(0, good.size() - 4)), Contains("describes a model of"));
  CHECK_THAT(refusal(good + "1234"), Contains(std::to_string(good.size() + 4)));
  CHECK_THAT(refusal(good.substr(0, 20)), Contains("20 bytes"));
  std::string zero = good;
  std::fill_n(zero.begin() + 8, 4, '\0');
  CHECK_THAT(refusal(zero), Contains("header field 2 is 0"));
  std::string heads = good;
  heads[12] = 3;
  CHECK_THAT(refusal(heads), Contains("3 heads"));
  std::string vast = good;
  for (size_t field = 0; field < 7; ++field) {
    std::fill_n(vast.begin() + static_cast<std::ptrdiff_t>(field * 4), 4, '\0');
    vast[field * 4 + 3] = 1;  // 2^24
  }
  CHECK_THROWS_AS(read_llama2c(dir / "none.bin"), CheckpointError);
  refusal(vast);
  std::string nan = good;
  std::fill_n(nan.begin() + 28 + 4, 4, '\xFF');
  CHECK_THAT(refusal(nan), Contains("model.embed_tokens.weight element 1 is"));
}

TEST_CASE("stories260K becomes a Hugging Face folder") {
  const auto model = test::shared_data("stories260K.bin");
  const auto tokenizer = test::shared_data("tok512.bin");
  if (model.empty() || tokenizer.empty()) return;
  const test::TempDir dir;
  import_llama2c(model, tokenizer, dir / "out");
  const ModelConfig config = read_hf_config(dir / "out").model;
  CHECK(config.hidden_size == 64);
  CHECK(config.intermediate_size == 172);
  CHECK(config.num_hidden_layers == 5);
  CHECK(config.num_attention_heads == 8);
  CHECK(config.num_key_value_heads == 4);
  CHECK(config.vocab_size == 512);
  CHECK(config.max_position_embeddings == 512);
  CHECK(config.tie_word_embeddings);
  CHECK(parameter_count(config) == 260032);
  const TensorSource source(dir / "out");
  CHECK(source.names().size() == 2 + 5 * 9);
  CHECK(source.find("lm_head.weight") == nullptr);
  CHECK(make_tokenizer((dir / "out").string(), {})->vocab_size() == 512);
  const test::TempDir other;
  CHECK_THROWS_AS(import_llama2c(tokenizer, {}, other / "out"), CheckpointError);
}

}  // namespace
}  // namespace fp8train
