#include "io/export/export_gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/math.h"
#include "data/chat/chat_template.h"
#include "data/tokenizer.h"
#include "data/tokenizers/registry.h"
#include "data/tokenizers/token_table.h"
#include "io/export/encode_values.h"
#include "model/families/family.h"
#include "model/families/hf_fields.h"
#include "model/rotary.h"
#include "numeric/dtype.h"

namespace fp8train {
namespace {

constexpr const char* kRopeFactors = "rope_freqs.weight";

constexpr uint32_t kVersion = 3;
constexpr uint64_t kAlignment = 32;  // general.alignment is 32 where no key says otherwise

struct GgufTypeFacts {
  GgufType type = GgufType::f32;
  int64_t file_type =
      0;  ///< number of a file whose matrices have the type (llama.cpp: llama_ftype)
  std::optional<DType> dtype;  ///< type of an element; none: blocks of a row have a scale
  int64_t block = 1;           ///< elements
  uint64_t block_bytes = 0;
};
constexpr GgufTypeFacts kTypes[] = {{GgufType::f32, 0, DType::f32, 1, 4},
                                    {GgufType::f16, 1, DType::f16, 1, 2},
                                    {GgufType::q8_0, 7, {}, 32, 34},
                                    {GgufType::bf16, 32, DType::bf16, 1, 2}};

const GgufTypeFacts& facts_of(GgufType type) {
  const auto* const found = std::ranges::find(kTypes, type, &GgufTypeFacts::type);
  check(found != std::end(kTypes), "GGUF: a type without facts");
  return *found;
}

struct GgufTensor {
  std::string name;
  std::vector<int64_t> shape;  ///< row-major; the file has the last extent first
  GgufType type = GgufType::f32;

  /// Returns the bytes in the file.
  uint64_t bytes() const {
    const GgufTypeFacts& facts = facts_of(type);
    check(shape.back() % facts.block == 0, "rows are not multiples of the type's blocks");
    const int64_t count =
        std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
    return static_cast<uint64_t>(count / facts.block) * facts.block_bytes;
  }
};

GgufType type_of(const HfPiece& piece, const std::vector<int64_t>& shape, GgufType type) {
  if (shape.size() == 1 || piece.gguf_is_f32) {
    return GgufType::f32;
  }
  return shape.back() % facts_of(type).block != 0 ? GgufType::f16 : type;
}

/// Where Llama 3 stretches frequencies, by how much, which llama.cpp reads as a tensor.
std::vector<float> rope_factors(const ModelConfig& config) {
  if (!has_gguf_rope_factors(config)) {
    return {};
  }
  ModelConfig plain = config;
  plain.rope_scaling.reset();
  const std::vector<double> before = rotary_frequencies(plain);
  const std::vector<double> after = rotary_frequencies(config);
  std::vector<float> factors;
  for (size_t i = 0; i < before.size(); ++i) {
    factors.push_back(static_cast<float>(before[i] / after[i]));
  }
  return factors;
}

/// The tensors of the file, in order of the parameters, and a note on those that the model lacks.
std::vector<ModelTensor> tensors_of(const ModelSource& model, const ModelFamily& family,
                                    std::vector<std::string>& notes) {
  ModelConfig config = completed(model.config.model);
  family.add_gguf_biases(config);
  std::vector<ModelTensor> tensors = model_tensors(config);
  const size_t added = tensors.size() - model.tensors.size();
  if (added > 0) {
    notes.push_back(fmt::format(
        "the model lacks {} biases that llama.cpp asks for; they are written as zeros", added));
  }
  return tensors;
}

/// Rows are outputs there; [in, out] becomes [out, in].
GgufTensor described(const ModelTensor& tensor, GgufType type) {
  std::vector<int64_t> shape = tensor.shape;
  if (tensor.piece.transposed) {
    std::swap(shape[0], shape[1]);
  }
  return {tensor.piece.gguf, shape, type_of(tensor.piece, shape, type)};
}

std::string architecture_of(const ModelSource& model, const ModelConfig& config,
                            const ModelFamily* family) {
  if (config.moe.experts > 0) {
    throw CheckpointError(fmt::format(
        "{}: models with experts are not written as GGUF; fp8train export {} --to hf, from which "
        "llama.cpp's convert_hf_to_gguf.py makes one",
        model.folder.string(), model.folder.string()));
  }
  std::string architecture(family == nullptr ? "" : family->gguf_architecture(config));
  if (architecture.empty()) {
    throw CheckpointError(
        fmt::format("{}: llama.cpp has no architecture that computes this model; export --to hf",
                    model.folder.string()));
  }
  return architecture;
}

/// Types of values (ggml: gguf_type).
enum class ValueType : uint32_t { u32 = 4, i32 = 5, f32 = 6, boolean = 7, text = 8, list = 9 };

template <typename Number>
void append(std::string& to, Number value) {
  static_assert(std::is_trivially_copyable_v<Number>);
  to.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void append_text(std::string& to, std::string_view text) {
  append(to, static_cast<uint64_t>(text.size()));
  to += text;
}

void append_type(std::string& to, ValueType type) {
  append(to, static_cast<uint32_t>(type));
}

void append_list(std::string& to, const ConfigObject& list) {
  append_type(to, ValueType::list);
  const bool whole = !list.empty() && list.front().is_number_integer();
  const bool number = !list.empty() && list.front().is_number_float();
  append_type(to, whole ? ValueType::i32 : number ? ValueType::f32 : ValueType::text);
  append(to, static_cast<uint64_t>(list.size()));
  for (const ConfigObject& value : list) {
    if (whole) {
      append(to, value.get<int32_t>());
    } else if (number) {
      append(to, value.get<float>());
    } else {
      append_text(to, value.get_ref<const std::string&>());
    }
  }
}

/// Whole numbers become uint32, or int32 in lists, others float32; an empty list is one of texts.
void append_value(std::string& to, const ConfigObject& value) {
  if (value.is_boolean()) {
    append_type(to, ValueType::boolean);
    append(to, static_cast<uint8_t>(value.get<bool>()));
  } else if (value.is_number_integer()) {
    check(std::in_range<uint32_t>(value.get<int64_t>()),
          "a number of a GGUF file does not fit into 32 bits");
    append_type(to, ValueType::u32);
    append(to, value.get<uint32_t>());
  } else if (value.is_number_float()) {
    append_type(to, ValueType::f32);
    append(to, value.get<float>());
  } else if (value.is_string()) {
    append_type(to, ValueType::text);
    append_text(to, value.get_ref<const std::string&>());
  } else {
    check(value.is_array(), "GGUF: a value is neither a number, a text nor a list");
    append_list(to, value);
  }
}

std::string header_of(const ConfigObject& metadata, const std::vector<GgufTensor>& tensors) {
  std::string header = "GGUF";
  append(header, kVersion);
  append(header, static_cast<uint64_t>(tensors.size()));
  append(header, static_cast<uint64_t>(metadata.size()));
  for (const auto& [key, value] : metadata.items()) {
    append_text(header, key);
    append_value(header, value);
  }
  uint64_t offset = 0;
  for (const GgufTensor& tensor : tensors) {
    append_text(header, tensor.name);
    append(header, static_cast<uint32_t>(tensor.shape.size()));
    for (size_t i = tensor.shape.size(); i-- > 0;) {
      append(header, static_cast<uint64_t>(tensor.shape[i]));
    }
    append(header, static_cast<uint32_t>(tensor.type));
    append(header, offset);
    offset += round_up(tensor.bytes(), kAlignment);
  }
  return header;
}

/// Tokens of the model that the tokenizer lacks are unused.
void extend(TokenTable& table, int64_t vocab_size) {
  while (static_cast<int64_t>(table.tokens.size()) < vocab_size) {
    table.tokens.push_back(fmt::format("[PAD{}]", table.tokens.size()));
    table.types.push_back(TokenType::unused);
    if (table.kind == TokenTableKind::scored) {
      table.scores.push_back(-1e9F);
    }
  }
}

void add_table(const TokenTable& table, ConfigObject& metadata) {
  const bool scored = table.kind == TokenTableKind::scored;
  set(metadata, "tokenizer.ggml.model", scored ? "llama" : "gpt2");
  set(metadata, "tokenizer.ggml.pre", table.pre.empty() ? "default" : table.pre);
  set(metadata, "tokenizer.ggml.tokens", table.tokens);
  set(metadata, "tokenizer.ggml.token_type", table.types);
  if (scored) {
    set(metadata, "tokenizer.ggml.scores", table.scores);
  } else {
    set(metadata, "tokenizer.ggml.merges", table.merges);
  }
  set(metadata, "tokenizer.ggml.add_space_prefix", table.adds_space);
  if (table.unknown >= 0) {
    set(metadata, "tokenizer.ggml.unknown_token_id", int64_t{table.unknown});
  }
}

void add_ends(const ModelSource& model, const Tokenizer& tokenizer, ConfigObject& metadata) {
  const ModelConfig& config = model.config.model;
  const int64_t bos = config.bos_token_id >= 0 ? config.bos_token_id : tokenizer.bos_id();
  const int64_t eos = config.eos_token_id >= 0 ? config.eos_token_id : tokenizer.eos_id();
  if (bos >= 0) {
    set(metadata, "tokenizer.ggml.bos_token_id", bos);
  }
  if (eos >= 0) {
    set(metadata, "tokenizer.ggml.eos_token_id", eos);
  }
  set(metadata, "tokenizer.ggml.add_bos_token", !tokenizer.frame().before_prompt.empty());
  set(metadata, "tokenizer.ggml.add_eos_token", false);
}

/// Appends tokenizer.ggml.* and tokenizer.chat_template for the tokenizer in the model's folder,
/// and a note for each thing that a GGUF file cannot have. Throws as export_gguf().
void add_tokenizer(const ModelSource& model, ConfigObject& metadata,
                   std::vector<std::string>& notes) {
  const std::string folder = model.folder.string();
  if (!tokenizers::has_tokenizer(model.folder)) {
    notes.push_back(folder + " has no tokenizer: the file has none, and takes ids only");
    set(metadata, "tokenizer.ggml.model", "none");
    return;
  }
  const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(model.folder);
  TokenTable table;
  try {
    table = token_table(*tokenizer);
  } catch (const DataError& error) {
    notes.push_back(
        fmt::format("{}; so the file has no tokenizer and takes ids only", error.what()));
    set(metadata, "tokenizer.ggml.model", "none");
    return;
  }
  const int64_t vocabulary = model.config.model.vocab_size;
  if (static_cast<int64_t>(table.tokens.size()) > vocabulary) {
    throw CheckpointError(fmt::format("{}: the tokenizer has {} tokens, but the model {}", folder,
                                      table.tokens.size(), vocabulary));
  }
  if (table.pre.empty()) {
    notes.emplace_back(
        "llama.cpp has no name for how this tokenizer splits texts (tokenizer.ggml.pre is "
        "'default'): it may give other ids");
  }
  for (const std::string& difference : table.differences) {
    notes.push_back(fmt::format("llama.cpp {}: such texts get other ids there", difference));
  }
  extend(table, vocabulary);
  add_table(table, metadata);
  add_ends(model, *tokenizer, metadata);
  if (std::string text = own_chat_template(*tokenizer); !text.empty()) {
    set(metadata, "tokenizer.chat_template", std::move(text));
  }
}

}  // namespace

GgufReport export_gguf(const ModelSource& model, const std::filesystem::path& to, GgufType type) {
  const ModelConfig config = completed(model.config.model);
  const ModelFamily* family = standard_family(config);
  const std::string architecture = architecture_of(model, config, family);
  GgufReport report;
  ConfigObject metadata = {{"general.architecture", architecture},
                           {"general.type", "model"},
                           {"general.name", to.stem().string()},
                           {"general.file_type", facts_of(type).file_type},
                           {"general.quantization_version", 2}};
  ConfigObject sizes;
  family->write_gguf(config, sizes);
  for (const auto& [key, value] : sizes.items()) {
    set(metadata, fmt::format("{}.{}", architecture, key), value);
  }
  if (config.sliding_window > 0) {
    report.notes.push_back(
        fmt::format("the model's window of {} tokens is not written; context_length is {}",
                    config.sliding_window, longest_sequence(config)));
  }
  add_tokenizer(model, metadata, report.notes);
  const std::vector<ModelTensor> contents = tensors_of(model, *family, report.notes);

  std::vector<GgufTensor> tensors;
  const std::vector<float> factors = rope_factors(config);
  if (!factors.empty()) {
    tensors.push_back({kRopeFactors, {static_cast<int64_t>(factors.size())}, GgufType::f32});
  }
  for (const ModelTensor& tensor : contents) {
    tensors.push_back(described(tensor, type));
  }
  for (const GgufTensor& tensor : tensors) {
    report.bytes += tensor.bytes();
  }
  report.tensors = contents.size();
  AtomicFile file(to);
  const auto put = [&](const void* data, uint64_t bytes) {
    constexpr std::array<char, kAlignment> kZeros = {};
    file.write(data, bytes);
    file.write(kZeros.data(), round_up(bytes, kAlignment) - bytes);
  };
  const std::string header = header_of(metadata, tensors);
  put(header.data(), header.size());
  if (!factors.empty()) {
    put(factors.data(), tensors.front().bytes());
  }
  for (const ModelTensor& tensor : contents) {
    const GgufTensor target = described(tensor, type);
    const bool is_there = model.source.find(tensor.piece.name) != nullptr;
    const std::vector<float> values =  // zeros for a tensor that the model lacks
        is_there ? model.read_rows(tensor, family->gguf_has_neighbour_rope())
                 : std::vector<float>(static_cast<size_t>(tensor.shape[0]), 0.0F);
    const std::optional<DType> dtype = facts_of(target.type).dtype;
    const std::vector<std::byte> bytes =
        dtype ? encoded(values, *dtype, target.name) : encoded_q8_0(values, target.name);
    put(bytes.data(), target.bytes());
  }
  file.commit();
  return report;
}

}  // namespace fp8train
