#include "train/checkpoint/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "base/math.h"
#include "io/model_source.h"
#include "model/hf_names.h"
#include "train/checkpoint/value_checks.h"

namespace fp8train {
namespace {

int64_t columns_of(const Parameter& parameter) {
  return parameter.shape.rank() == 1 ? 1 : parameter.shape.back();
}

void warn_of_unread(Decoder& model, const TensorSource& source) {
  const std::vector<std::string> names = unread_tensors(model, source);
  if (names.empty()) {
    return;
  }
  log_warning(fmt::format(
      "the weights hold '{}'{}, which a model with this config.json does not have: not read",
      names.front(),
      names.size() == 1 ? "" : fmt::format(" and {} more tensors", names.size() - 1)));
}

}  // namespace

std::vector<std::string> unread_tensors(Decoder& model, const TensorSource& source) {
  std::set<const SafetensorsEntry*> read;
  for (const auto& parameter : model.parameters().all()) {
    for (const HfPiece& piece : hf_pieces(model.config(), parameter->name)) {
      read.insert(source.find(piece.name));
    }
  }
  std::vector<std::string> unread;
  for (const std::string& name : source.names()) {
    if (read.count(source.find(name)) == 0 &&
        !follows_from_config(model.config(), source.unwrapped(name))) {
      unread.push_back(name);
    }
  }
  return unread;
}

namespace {

bool is_token_table(const Parameter& parameter) {
  return parameter.name == "embedding.weight" || parameter.name == "head.weight";
}

/// The rows of the file, and for each one that it lacks their mean.
std::vector<float> read_table(const TensorSource& source, const std::string& name,
                              const std::vector<int64_t>& shape) {
  const SafetensorsEntry* entry = source.find(name);
  const bool fewer = entry != nullptr && entry->shape.size() == 2 && entry->shape[0] > 0 &&
                     entry->shape[0] < shape[0] && entry->shape[1] == shape[1];
  if (!fewer) {
    return source.read_f32(name, shape);
  }
  std::vector<float> values = source.read_f32(name, entry->shape);
  const auto columns = static_cast<size_t>(shape[1]);
  std::vector<double> mean(columns, 0.0);
  for (size_t i = 0; i < values.size(); ++i) {
    mean[i % columns] += static_cast<double>(values[i]);
  }
  for (double& value : mean) {
    value /= static_cast<double>(entry->shape[0]);
  }
  for (int64_t row = entry->shape[0]; row < shape[0]; ++row) {
    for (const double value : mean) {
      values.push_back(static_cast<float>(value));
    }
  }
  return values;
}

}  // namespace

void load_weights(Device& device, Decoder& model, const TensorSource& source,
                  MissingTokens missing) {
  std::vector<const Parameter*> parameters;
  for (const auto& parameter : model.parameters().all()) {
    parameters.push_back(parameter.get());
  }
  // In the order of a file, which is then read once; those that it lacks come first.
  std::ranges::stable_sort(parameters, {}, [&](const Parameter* parameter) {
    const SafetensorsEntry* const entry =
        source.find(hf_pieces(model.config(), parameter->name).front().name);
    return entry == nullptr ? 0 : entry->begin;
  });
  for (const Parameter* const parameter : parameters) {
    const int64_t columns = columns_of(*parameter);
    std::vector<float> values(static_cast<size_t>(parameter->shape.count()), 0.0F);
    for (const HfPiece& piece : hf_pieces(model.config(), parameter->name)) {
      const std::vector<int64_t> shape = hf_shape(piece, parameter->shape.rank() == 1, columns);
      std::vector<float> read = missing == MissingTokens::append && is_token_table(*parameter)
                                    ? read_table(source, piece.name, shape)
                                    : source.read_f32(piece.name, shape);
      if (piece.transposed) {
        read = transposed(read, columns, piece.rows);
      }
      std::copy(read.begin(), read.end(), values.begin() + piece.begin * columns);
    }
    set_value(device, *parameter, values.data());
  }
  warn_of_unread(model, source);
}

namespace {

void check_finite(const ModelConfig& config, const WeightsCopy::Parameter& parameter) {
  const auto* values = static_cast<const float*>(parameter.values.data());
  const int64_t columns = parameter.columns;
  for (const HfPiece& piece : hf_pieces(config, parameter.name)) {
    const float* begin = values + piece.begin * columns;
    const int64_t bad = first_impossible(begin, DType::f32, piece.rows * columns);
    if (bad == piece.rows * columns) {
      continue;
    }
    const int64_t index = piece.transposed ? bad % columns * piece.rows + bad / columns : bad;
    throw NumericError(
        fmt::format("{}[{}] is {}: training has diverged, and nothing of this step is written",
                    piece.name, index, begin[bad]));
  }
}

}  // namespace

void copy_weights(Engine& engine, bool wanted, WeightsCopy& into) {
  const auto& parameters = engine.model().parameters().all();
  into.parameters.resize(wanted ? parameters.size() : 0);
  size_t next = 0;
  engine.strategy().copy_values([&](const Parameter& parameter) -> float* {
    if (!wanted) {
      return nullptr;
    }
    WeightsCopy::Parameter& copy = into.parameters.at(next++);
    copy.name = parameter.name;
    copy.columns = columns_of(parameter);
    copy.is_vector = parameter.shape.rank() == 1;
    const size_t bytes = static_cast<size_t>(parameter.shape.count()) * sizeof(float);
    return static_cast<float*>(copy.values.resize(bytes));
  });
  for (const WeightsCopy::Parameter& parameter : into.parameters) {
    check_finite(engine.model().config(), parameter);
  }
}

std::vector<TensorBytes> hf_tensors(const ModelConfig& config, const WeightsCopy& copy,
                                    std::vector<std::vector<float>>& storage) {
  std::vector<TensorBytes> tensors;
  for (const WeightsCopy::Parameter& parameter : copy.parameters) {
    for (const HfPiece& piece : hf_pieces(config, parameter.name)) {
      const int64_t columns = parameter.columns;
      const float* values =
          static_cast<const float*>(parameter.values.data()) + piece.begin * columns;
      if (piece.transposed) {
        const std::vector<float> rows(values, values + piece.rows * columns);
        values = storage.emplace_back(transposed(rows, piece.rows, columns)).data();
      }
      tensors.push_back(
          {piece.name, DType::f32, hf_shape(piece, parameter.is_vector, columns), values});
    }
  }
  return tensors;
}

}  // namespace fp8train
