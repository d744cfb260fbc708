#include "model/hf_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "model/decoder.h"
#include "model/families/family.h"
#include "model/lora.h"

namespace fp8train {
namespace {

ParameterName parse(const std::string& parameter) {
  const std::string prefix = "layers.";
  ParameterName name;
  std::string rest = parameter;
  if (parameter.starts_with(prefix)) {
    const size_t dot = parameter.find('.', prefix.size());
    name.block = parameter.substr(prefix.size(), dot - prefix.size());
    rest = parameter.substr(dot + 1);
  }
  const size_t dot = rest.rfind('.');
  name.module = rest.substr(0, dot);
  name.leaf = rest.substr(dot + 1);
  return name;
}

}  // namespace

std::vector<HfPiece> hf_pieces(const ModelConfig& config, const std::string& parameter) {
  return is_adapter(parameter) ? std::vector{lora_tensor(config, parameter)}
                               : config.family->pieces(config, parse(parameter));
}

std::vector<int64_t> hf_shape(const HfPiece& piece, bool is_vector, int64_t columns) {
  if (is_vector) {
    return {piece.rows};
  }
  return piece.transposed ? std::vector<int64_t>{columns, piece.rows}
                          : std::vector<int64_t>{piece.rows, columns};
}

std::vector<ModelTensor> model_tensors(const ModelConfig& config) {
  const std::unique_ptr<Device> meta = make_device(DeviceKind::meta);
  Decoder model(*meta, completed(config), plan_named("fp32"), {.gradients = false});
  std::vector<ModelTensor> tensors;
  for (const auto& parameter : model.parameters().all()) {
    const bool is_vector = parameter->shape.rank() == 1;
    for (HfPiece& piece : hf_pieces(model.config(), parameter->name)) {
      const std::vector<int64_t> shape = hf_shape(piece, is_vector, parameter->shape.back());
      tensors.push_back({std::move(piece), shape, !parameter->matrices.empty(), parameter->name});
    }
  }
  return tensors;
}

std::vector<size_t> divide_into_files(const std::vector<uint64_t>& bytes, uint64_t max_bytes) {
  std::vector<size_t> files;
  uint64_t filled = 0;
  for (const uint64_t one : bytes) {
    const bool begins = !files.empty() && one > max_bytes - std::min(filled, max_bytes);
    files.push_back(files.empty() ? 0 : files.back() + (begins ? 1 : 0));
    filled = (begins ? 0 : filled) + one;
  }
  return files;
}

std::string model_file_name(size_t file, size_t files) {
  return files == 1 ? "model.safetensors"
                    : fmt::format("model-{:05}-of-{:05}.safetensors", file + 1, files);
}

std::vector<std::vector<ModelTensor>> model_files(const ModelConfig& config, uint64_t max_bytes) {
  std::vector<ModelTensor> tensors = model_tensors(config);
  if (config.lora.is_on()) {
    std::erase_if(tensors, [](const ModelTensor& tensor) { return !is_adapter(tensor.parameter); });
  }
  std::ranges::sort(tensors, {}, [](const ModelTensor& tensor) { return tensor.piece.name; });
  std::vector<uint64_t> bytes;
  for (const ModelTensor& tensor : tensors) {
    const int64_t count = tensor.piece.rows * tensor.columns();
    bytes.push_back(static_cast<uint64_t>(count) * sizeof(float));
  }
  const std::vector<size_t> file_of =
      divide_into_files(bytes, config.lora.is_on() ? UINT64_MAX : max_bytes);
  std::vector<std::vector<ModelTensor>> files(file_of.back() + 1);
  for (size_t i = 0; i < tensors.size(); ++i) {
    files[file_of[i]].push_back(std::move(tensors[i]));
  }
  return files;
}

std::string hf_head_weight(const ModelConfig& config) {
  return hf_pieces(config, "head.weight").front().name;
}

bool follows_from_config(const ModelConfig& config, const std::string& name) {
  return config.family->is_buffer(name) ||
         (config.tie_word_embeddings && name == hf_head_weight(config));
}

}  // namespace fp8train
