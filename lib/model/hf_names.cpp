#include "model/hf_names.h"

#include <memory>
#include <utility>

#include "model/decoder.h"
#include "model/families/family.h"

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
  return config.family->pieces(config, parse(parameter));
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
      tensors.push_back({std::move(piece), shape, !parameter->matrices.empty()});
    }
  }
  return tensors;
}

std::string hf_head_weight(const ModelConfig& config) {
  return hf_pieces(config, "head.weight").front().name;
}

bool follows_from_config(const ModelConfig& config, const std::string& name) {
  return config.family->is_buffer(name) ||
         (config.tie_word_embeddings && name == hf_head_weight(config));
}

}  // namespace fp8train
