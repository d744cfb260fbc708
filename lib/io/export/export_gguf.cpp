#include "io/export/export_gguf.h"

#include <fmt/format.h>

#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "io/export/encode_values.h"
#include "model/families/family.h"
#include "model/families/rope_fields.h"
#include "model/rotary.h"

namespace fp8train {
namespace {

constexpr const char* kRopeFactors = "rope_freqs.weight";

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

}  // namespace

GgufReport export_gguf(const ModelSource& model, const std::filesystem::path& to, GgufType type) {
  const ModelConfig config = completed(model.config.model);
  const ModelFamily* family = standard_family(config);
  const std::string architecture = architecture_of(model, config, family);
  GgufReport report;
  ConfigObject metadata;
  set(metadata, "general.architecture", architecture);
  set(metadata, "general.type", "model");
  set(metadata, "general.name", to.stem().string());
  set(metadata, "general.file_type", facts_of(type).file_type);
  set(metadata, "general.quantization_version", int64_t{2});
  ConfigObject sizes;
  family->write_gguf(config, sizes);
  for (ConfigEntry& entry : sizes) {
    metadata.push_back({architecture + "." + entry.key, std::move(entry.value)});
  }
  if (config.sliding_window > 0) {
    report.notes.push_back(
        fmt::format("the model's window of {} tokens is not written; context_length is {}",
                    config.sliding_window, longest_sequence(config)));
  }
  add_gguf_tokenizer(model, metadata, report.notes);
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
  GgufWriter writer(to, metadata, tensors);
  if (!factors.empty()) {
    writer.write(factors.data());
  }
  const bool neighbours = family->gguf_has_neighbour_rope();
  for (const ModelTensor& tensor : contents) {
    const GgufTensor target = described(tensor, type);
    const bool is_there = model.source.find(tensor.piece.name) != nullptr;
    const std::vector<float> values =  // zeros for a tensor that the model lacks
        is_there ? model.read_rows(tensor, neighbours)
                 : std::vector<float>(static_cast<size_t>(tensor.shape[0]), 0.0F);
    const std::optional<DType> dtype = facts_of(target.type).dtype;
    const std::vector<std::byte> bytes =
        dtype ? encoded(values, *dtype, target.name) : encoded_q8_0(values, target.name);
    writer.write(bytes.data());
  }
  writer.commit();
  return report;
}

}  // namespace fp8train
