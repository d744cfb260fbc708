#include "engine/state_tensors.h"

#include <fmt/format.h>

#include "model/hf_names.h"

namespace fp8train {
namespace {

std::vector<int64_t> extents(const Shape& shape) {
  std::vector<int64_t> result;
  for (size_t i = 0; i < shape.rank(); ++i) {
    result.push_back(shape[i]);
  }
  return result;
}

std::string part_name(const std::string& name, int64_t first) {
  return fmt::format("{}@{}", name, first);
}

/// Returns the bytes of the fp32 values of all parameters, and once more of those in transposed
/// pieces.
size_t weights_copy_bytes(Decoder& model) {
  int64_t values = 0;
  for (const auto& parameter : model.parameters().all()) {
    const int64_t rows = parameter->shape[0];
    const int64_t columns = rows == 0 ? 0 : parameter->shape.count() / rows;
    values += rows * columns;
    for (const HfPiece& piece : hf_pieces(model.config(), parameter->name)) {
      values += piece.transposed ? piece.rows * columns : 0;
    }
  }
  return static_cast<size_t>(values) * sizeof(float);
}

}  // namespace

std::vector<StateTensor> state_tensors(Engine& engine) {
  std::vector<StateTensor> found;
  const Optimizer& optimizer = engine.optimizer();
  const ParameterStore& store = engine.model().parameters();
  const auto add = [&](const std::string& role, const Parameter& parameter, const Encoded& tensor) {
    const bool shares_scale = tensor.format.is_scaled() && tensor.format.block == per::tensor;
    if (!tensor.empty() && (parameter.updated.count() > 0 || shares_scale)) {
      found.push_back({role + "." + parameter.name, tensor, parameter.shape,
                       parameter.updated.first, parameter.updated.whole});
    }
  };
  for (const OptimizerState* state : optimizer.states()) {
    for (size_t i = 0; i < store.all().size(); ++i) {
      add(state->name(), *store.all()[i], state->of(i));
    }
  }
  for (const auto& parameter : store.all()) {
    // model.safetensors has fp32 values, in one piece or in two, without loss.
    if (parameter->formats.value != TensorFormat{} && !parameter->formats.value.remainder) {
      add("value", *parameter, parameter->updated.value);
    }
  }
  return found;
}

std::vector<std::pair<std::string, View>> state_factors(Engine& engine) {
  std::vector<std::pair<std::string, View>> found;
  for (const auto& parameter : engine.model().parameters().all()) {
    if (parameter->automatic != nullptr) {
      found.emplace_back("gradient." + parameter->name + ".factor",
                         View{&parameter->automatic->factor, DType::f32, {1}});
    }
  }
  return found;
}

View saved_scales(const Encoded& tensor) {
  return tensor.format.block == per::tensor ? View{tensor.scales.data, DType::f32, {1}}
                                            : tensor.scales;
}

std::vector<SavedTensor> saved_tensors(Engine& engine) {
  std::vector<SavedTensor> saved;
  for (const StateTensor& entry : state_tensors(engine)) {
    const Encoded& tensor = entry.tensor;
    if (tensor.count() == 0) {
      continue;
    }
    saved.push_back({entry.whole ? entry.name : part_name(entry.name, entry.first), tensor.codes,
                     entry.whole ? extents(entry.shape) : std::vector<int64_t>{tensor.count()}});
    if (tensor.scales.empty()) {
      continue;
    }
    const View scales = saved_scales(tensor);
    const bool grouped = tensor.format.block.is_group();
    const std::string scale = entry.name + kScaleSuffix;
    // The one scale of a whole tensor is saved with its first part.
    const int64_t first = grouped ? stored_scales(tensor.format, entry.first) : 0;
    if (entry.whole || grouped || entry.first == 0) {
      saved.push_back({entry.whole ? scale : part_name(scale, first), scales, {scales.count()}});
    }
  }
  const auto share = engine.model().parameters().share();
  if (!share || share->rank == 0) {
    for (const auto& [name, factor] : state_factors(engine)) {
      saved.push_back({name, factor, {1}});
    }
  }
  return saved;
}

bool writes_optimizer(Engine& engine, int rank) {
  const auto share = engine.model().parameters().share();
  return share ? share->writes : rank == 0;
}

size_t state_copy_bytes(Engine& engine, int rank) {
  size_t bytes = rank == 0 ? weights_copy_bytes(engine.model()) : 0;
  if (writes_optimizer(engine, rank)) {
    for (const SavedTensor& saved : saved_tensors(engine)) {
      bytes += saved.view.bytes();
    }
  }
  return bytes;
}

}  // namespace fp8train
