#include "io/llama2c.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>

#include "base/error.h"
#include "base/input_file.h"
#include "data/tokenizer.h"
#include "io/export/row_order.h"
#include "io/hf_folder.h"
#include "io/strict_json.h"

namespace fp8train {
namespace {

constexpr size_t kHeaderInts = 7;
constexpr uint64_t kHeaderBytes = kHeaderInts * sizeof(int32_t);
constexpr int64_t kMaxExtent = 1 << 24;

ModelConfig read_header(const InputFile& file) {
  const std::string name = file.path().string();
  if (file.size() < kHeaderBytes) {
    throw CheckpointError(
        fmt::format("{}: {} bytes cannot be a llama2.c model", name, file.size()));
  }
  std::array<int32_t, kHeaderInts> header = {};
  file.read(0, header.data(), kHeaderBytes);
  constexpr size_t kVocab = 5;
  for (size_t i = 0; i < kHeaderInts; ++i) {
    const int64_t extent = i == kVocab ? std::abs(int64_t{header[i]}) : int64_t{header[i]};
    if (extent < 1 || extent > kMaxExtent) {
      throw CheckpointError(
          fmt::format("{}: header field {} is {}; this is not a llama2.c model of version 0", name,
                      i, header[i]));
    }
  }
  ModelConfig config;
  config.hidden_size = header[0];
  config.intermediate_size = header[1];
  config.num_hidden_layers = header[2];
  config.num_attention_heads = header[3];
  config.num_key_value_heads = header[4];
  config.vocab_size = std::abs(int64_t{header[kVocab]});
  config.max_position_embeddings = header[6];
  config.tie_word_embeddings = header[kVocab] > 0;
  config.head_dim = config.hidden_size / config.num_attention_heads;
  config.norm_eps = 1e-5F;
  config.rope_theta = 10000.0;
  config.bos_token_id = 1;
  config.eos_token_id = 2;
  if (config.head_dim * config.num_attention_heads != config.hidden_size ||
      config.head_dim % 2 != 0 || config.num_attention_heads % config.num_key_value_heads != 0) {
    throw CheckpointError(
        fmt::format("{}: {} heads and {} key-value heads do not fit a width of {}", name,
                    config.num_attention_heads, config.num_key_value_heads, config.hidden_size));
  }
  return config;
}

uint64_t expected_bytes(const ModelConfig& c) {
  // All extents are at most 2^24, so the sum is formed in 128 bits and cannot overflow there.
  using Wide = __uint128_t;
  const Wide width = static_cast<Wide>(c.hidden_size);
  const Wide kv = static_cast<Wide>(c.num_key_value_heads) * static_cast<Wide>(c.head_dim);
  const Wide layer = 2 * width + 2 * width * width + 2 * width * kv +
                     3 * width * static_cast<Wide>(c.intermediate_size);
  const Wide tables = static_cast<Wide>(c.max_position_embeddings) * static_cast<Wide>(c.head_dim);
  const Wide head = c.tie_word_embeddings ? 0 : width * static_cast<Wide>(c.vocab_size);
  const Wide floats = width * static_cast<Wide>(c.vocab_size) +
                      static_cast<Wide>(c.num_hidden_layers) * layer + width + tables + head;
  const Wide bytes = kHeaderBytes + floats * sizeof(float);
  return bytes > UINT64_MAX ? UINT64_MAX : static_cast<uint64_t>(bytes);
}

/// Reads tensors one after the other.
class WeightReader {
 public:
  WeightReader(const InputFile& file, Llama2cModel& model) : file_(file), model_(model) {}

  void add(const std::string& name, std::vector<int64_t> shape, int64_t rope_heads = 0) {
    const int64_t count =
        std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
    std::vector<float> values(static_cast<size_t>(count));
    file_.read(position_, values.data(), values.size() * sizeof(float));
    skip(count);
    const auto bad = std::find_if(values.begin(), values.end(),
                                  [](float value) { return !std::isfinite(value); });
    if (bad != values.end()) {
      throw CheckpointError(fmt::format("{}: {} element {} is {}", file_.path().string(), name,
                                        bad - values.begin(), *bad));
    }
    if (rope_heads > 0) {
      values = half_split_rope_rows(values, rope_heads, model_.config.head_dim);
    }
    model_.tensors.push_back({name, std::move(shape), std::move(values)});
  }

  void skip(int64_t floats) { position_ += static_cast<uint64_t>(floats) * sizeof(float); }

 private:
  const InputFile& file_;
  Llama2cModel& model_;
  uint64_t position_ = kHeaderBytes;
};

Llama2cModel read_model(const std::filesystem::path& path) {
  const InputFile file(path);
  Llama2cModel model;
  model.config = read_header(file);
  const ModelConfig& c = model.config;
  if (expected_bytes(c) != file.size()) {
    throw CheckpointError(
        fmt::format("{}: the header describes a model of {} bytes, but the file has {}",
                    path.string(), expected_bytes(c), file.size()));
  }
  const int64_t width = c.hidden_size;
  WeightReader reader(file, model);
  reader.add("model.embed_tokens.weight", {c.vocab_size, width});
  for (const Llama2cKind& kind : llama2c_kinds(c)) {
    for (int64_t layer = 0; layer < c.num_hidden_layers; ++layer) {
      reader.add(fmt::format("model.layers.{}.{}.weight", layer, kind.name), kind.shape,
                 kind.rope_heads);
    }
  }
  reader.add("model.norm.weight", {width});
  reader.skip(c.max_position_embeddings * c.head_dim);  // tables of cos and sin, unused since long
  if (!c.tie_word_embeddings) {
    reader.add("lm_head.weight", {c.vocab_size, width});
  }
  return model;
}

}  // namespace

std::vector<Llama2cKind> llama2c_kinds(const ModelConfig& config) {
  const int64_t width = config.hidden_size;
  const int64_t keys = config.num_key_value_heads * config.head_dim;
  const int64_t inner = config.intermediate_size;
  return {{"input_layernorm", {width}},
          {"self_attn.q_proj", {width, width}, config.num_attention_heads},
          {"self_attn.k_proj", {keys, width}, config.num_key_value_heads},
          {"self_attn.v_proj", {keys, width}},
          {"self_attn.o_proj", {width, width}},
          {"post_attention_layernorm", {width}},
          {"mlp.gate_proj", {inner, width}},
          {"mlp.down_proj", {width, inner}},
          {"mlp.up_proj", {inner, width}}};
}

Llama2cModel read_llama2c(const std::filesystem::path& path) {
  return detail::as_checkpoint_error([&] { return read_model(path); });
}

void import_llama2c(const std::filesystem::path& model_path,
                    const std::filesystem::path& tokenizer_path,
                    const std::filesystem::path& folder) {
  const Llama2cModel model = read_llama2c(model_path);
  HfFolderOptions options;
  if (!tokenizer_path.empty()) {
    const auto tokenizer = read_llama2c_tokenizer(tokenizer_path);
    if (tokenizer->vocab_size() != model.config.vocab_size) {
      throw CheckpointError(fmt::format("{} has {} tokens, but {} has a vocabulary of {}",
                                        tokenizer_path.string(), tokenizer->vocab_size(),
                                        model_path.string(), model.config.vocab_size));
    }
    options.tokenizer_json = tokenizer->to_json();
  }
  std::vector<TensorBytes> tensors;
  for (const NamedTensor& tensor : model.tensors) {
    tensors.push_back({tensor.name, DType::f32, tensor.shape, tensor.values.data()});
  }
  write_hf_folder(folder, model.config, tensors, options);
}

}  // namespace fp8train
