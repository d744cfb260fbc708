#include "io/export/export_llmc.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/math.h"
#include "io/export/encode_values.h"
#include "io/llama2c.h"
#include "model/families/family.h"
#include "model/rotary.h"

namespace fp8train {
namespace {

constexpr int32_t kMagic = 20240326;
constexpr int64_t kPaddedVocabulary = 128;

bool is_gpt2(const ModelSource& model) {
  return model.config.model.positions == PositionKind::learned;
}

[[noreturn]] void refuse(const ModelSource& model, const std::string& what) {
  throw CheckpointError(fmt::format("{}: {} cannot store {}; export --to hf", model.folder.string(),
                                    llmc_program(model), what));
}

void require_llmc(const ModelSource& model, const ModelConfig& c) {
  if (!gpt2_family().is_standard(c)) refuse(model, "this kind of attention");
  if (!c.tie_word_embeddings) refuse(model, "a head that is not tied");
  if (c.intermediate_size != 4 * c.hidden_size) {
    refuse(model,
           fmt::format("an MLP of {} for a width of {}", c.intermediate_size, c.hidden_size));
  }
  if (c.norm_eps != 1e-5F) refuse(model, fmt::format("a norm epsilon of {}", c.norm_eps));
}

void require_llama2c(const ModelSource& model, const ModelConfig& c) {
  if (!llama_family().is_standard(c) || c.qkv_bias || c.mlp_bias) {
    refuse(model, "biases or norms of q and k");
  }
  if (c.head_dim * c.num_attention_heads != c.hidden_size) {
    refuse(model, "heads that are not a part of the width");
  }
  if (c.rope_scaling || c.rope_theta != 10000.0) {
    refuse(model, "a RoPE base other than 10000, or a scaling");
  }
  if (c.norm_eps != 1e-5F) refuse(model, fmt::format("a norm epsilon of {}", c.norm_eps));
}

/// Writes tensors one after the other.
class TensorStream {
 public:
  TensorStream(const ModelSource& model, const std::filesystem::path& to, DType dtype)
      : model_(model), file_(to), dtype_(dtype) {}

  void header(const void* data, size_t bytes) {
    file_.write(data, bytes);
    bytes_ += bytes;
  }

  void values(const std::vector<float>& values, const std::string& name) {
    const std::vector<std::byte> bytes = encoded(values, dtype_, name);
    header(bytes.data(), bytes.size());
  }

  /// Rows are outputs in the file; `count` zeros where the model has no such tensor.
  void tensor(const std::string& name, int64_t count) {
    const ModelTensor* tensor = find(name);
    if (tensor == nullptr) {
      return values(std::vector<float>(static_cast<size_t>(count), 0.0F), name);
    }
    std::vector<float> read = model_.read_rows(*tensor, true);
    read.resize(static_cast<size_t>(count), 0.0F);
    values(read, name);
  }

  /// Writes the tensor of each layer; "{}" in the name is the layer's number.
  void per_layer(const char* name, int64_t count) {
    for (int64_t layer = 0; layer < model_.config.model.num_hidden_layers; ++layer) {
      tensor(fmt::format(fmt::runtime(name), layer), count);
    }
  }

  uint64_t commit() {
    file_.commit();
    return bytes_;
  }

 private:
  const ModelTensor* find(const std::string& name) const {
    for (const ModelTensor& tensor : model_.tensors) {
      if (tensor.piece.name == name) {
        return &tensor;
      }
    }
    return nullptr;
  }

  const ModelSource& model_;
  AtomicFile file_;
  DType dtype_;
  uint64_t bytes_ = 0;
};

uint64_t write_llmc(const ModelSource& model, const ModelConfig& c, const std::filesystem::path& to,
                    DType dtype) {
  constexpr size_t kHeader = 256;
  constexpr int32_t kFp32Version = 3;
  constexpr int32_t kBf16Version = 5;
  const int64_t width = c.hidden_size;
  const int64_t padded = round_up(c.vocab_size, kPaddedVocabulary);
  std::array<int32_t, kHeader> header = {kMagic,
                                         dtype == DType::f32 ? kFp32Version : kBf16Version,
                                         static_cast<int32_t>(c.max_position_embeddings),
                                         static_cast<int32_t>(c.vocab_size),
                                         static_cast<int32_t>(c.num_hidden_layers),
                                         static_cast<int32_t>(c.num_attention_heads),
                                         static_cast<int32_t>(width),
                                         static_cast<int32_t>(padded)};
  TensorStream out(model, to, dtype);
  out.header(header.data(), sizeof(header));
  out.tensor("transformer.wte.weight", padded * width);
  out.tensor("transformer.wpe.weight", c.max_position_embeddings * width);
  const std::pair<const char*, int64_t> kinds[] = {{"ln_1.weight", width},
                                                   {"ln_1.bias", width},
                                                   {"attn.c_attn.weight", 3 * width * width},
                                                   {"attn.c_attn.bias", 3 * width},
                                                   {"attn.c_proj.weight", width * width},
                                                   {"attn.c_proj.bias", width},
                                                   {"ln_2.weight", width},
                                                   {"ln_2.bias", width},
                                                   {"mlp.c_fc.weight", 4 * width * width},
                                                   {"mlp.c_fc.bias", 4 * width},
                                                   {"mlp.c_proj.weight", 4 * width * width},
                                                   {"mlp.c_proj.bias", width}};
  for (const auto& [name, count] : kinds) {
    out.per_layer(("transformer.h.{}." + std::string(name)).c_str(), count);
  }
  out.tensor("transformer.ln_f.weight", width);
  out.tensor("transformer.ln_f.bias", width);
  return out.commit();
}

/// cos, then sin, of position * frequency: [max_position_embeddings, head_dim / 2] each.
void write_angles(TensorStream& out, const ModelConfig& c) {
  const std::vector<double> frequencies = rotary_frequencies(c);
  for (double (*function)(double) :
       {static_cast<double (*)(double)>(std::cos), static_cast<double (*)(double)>(std::sin)}) {
    std::vector<float> table;
    for (int64_t position = 0; position < c.max_position_embeddings; ++position) {
      for (const double frequency : frequencies) {
        table.push_back(static_cast<float>(function(static_cast<double>(position) * frequency)));
      }
    }
    out.values(table, "angles of RoPE");
  }
}

uint64_t write_llama2c(const ModelSource& model, const ModelConfig& c,
                       const std::filesystem::path& to) {
  const int64_t width = c.hidden_size;
  const int64_t inner = c.intermediate_size;
  const int64_t vocabulary = c.tie_word_embeddings ? c.vocab_size : -c.vocab_size;
  const std::array<int32_t, 7> header = {static_cast<int32_t>(width),
                                         static_cast<int32_t>(inner),
                                         static_cast<int32_t>(c.num_hidden_layers),
                                         static_cast<int32_t>(c.num_attention_heads),
                                         static_cast<int32_t>(c.num_key_value_heads),
                                         static_cast<int32_t>(vocabulary),
                                         static_cast<int32_t>(c.max_position_embeddings)};
  TensorStream out(model, to, DType::f32);
  out.header(header.data(), sizeof(header));
  out.tensor("model.embed_tokens.weight", c.vocab_size * width);
  for (const auto& [name, shape, rope_heads] : llama2c_kinds(c)) {
    out.per_layer(fmt::format("model.layers.{{}}.{}.weight", name).c_str(),
                  std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>()));
  }
  out.tensor("model.norm.weight", width);
  write_angles(out, c);
  if (!c.tie_word_embeddings) {
    out.tensor("lm_head.weight", c.vocab_size * width);
  }
  return out.commit();
}

}  // namespace

const char* llmc_program(const ModelSource& model) {
  return is_gpt2(model) ? "llm.c" : "llama2.c";
}

uint64_t export_llmc(const ModelSource& model, const std::filesystem::path& to, DType dtype) {
  const ModelConfig config = completed(model.config.model);
  const bool gpt2 = is_gpt2(model);
  if (dtype != DType::f32 && !(gpt2 && dtype == DType::bf16)) {
    throw ConfigError(fmt::format("{} reads {}, not {}", llmc_program(model),
                                  gpt2 ? "fp32 and bf16" : "fp32", name_of(dtype)));
  }
  if (gpt2) {
    require_llmc(model, config);
    return write_llmc(model, config, to, dtype);
  }
  require_llama2c(model, config);
  return write_llama2c(model, config, to);
}

}  // namespace fp8train
