#include "io/model_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "io/hf_config.h"

namespace fp8train {
namespace {

struct Differences {
  std::vector<std::string> missing, unexpected, shapes;
};

Differences compare(const ModelSource& model) {
  Differences found;
  std::set<const SafetensorsEntry*> expected;
  for (const ModelTensor& tensor : model.tensors) {
    const SafetensorsEntry* entry = model.source.find(tensor.piece.name);
    expected.insert(entry);
    if (entry == nullptr) {
      found.missing.push_back(tensor.piece.name);
    } else if (entry->shape != tensor.shape) {
      found.shapes.push_back(
          fmt::format("{} is [{}], expected [{}]", model.source.described(tensor.piece.name),
                      fmt::join(entry->shape, ", "), fmt::join(tensor.shape, ", ")));
    }
  }
  for (const std::string& name : model.source.names()) {
    if (expected.count(model.source.find(name)) == 0 &&
        !follows_from_config(model.config.model, model.source.unwrapped(name))) {
      found.unexpected.push_back(name);
    }
  }
  return found;
}

}  // namespace

std::vector<float> ModelSource::read_rows(const ModelTensor& tensor, bool neighbour_rope) const {
  std::vector<float> values = read(tensor);
  if (tensor.piece.transposed) {
    values = transposed(values, tensor.shape[0], tensor.shape[1]);
  }
  if (neighbour_rope && tensor.piece.rope_heads > 0) {
    values = neighbour_rope_rows(values, tensor.piece.rope_heads, config.model.head_dim);
  }
  return values;
}

ModelSource open_model_source(const std::filesystem::path& folder) {
  HfConfig config = read_hf_config(folder);
  std::vector<ModelTensor> tensors = model_tensors(config.model);
  ModelSource model = {folder, std::move(config), TensorSource(folder), std::move(tensors)};
  const Differences found = compare(model);
  std::string text;
  constexpr size_t kNamed = 3;
  const auto add = [&](const char* what, const std::vector<std::string>& names) {
    if (!names.empty()) {
      text += fmt::format("{}{} {}: {}", text.empty() ? "" : "; ", names.size(), what,
                          joined(shortened(names, kNamed)));
    }
  };
  add("missing", found.missing);
  add("unexpected", found.unexpected);
  add("of another shape", found.shapes);
  if (!text.empty()) {
    throw CheckpointError(fmt::format(
        "{}: the tensors are not those of the model that config.json describes ({}); nothing is "
        "written",
        folder.string(), text));
  }
  std::map<std::string, std::string> names;
  for (const ModelTensor& tensor : model.tensors) {
    names.emplace(model.source.find(tensor.piece.name)->name, tensor.piece.name);
  }
  model.source.rename(names);
  return model;
}

std::vector<float> neighbour_rope_rows(const std::vector<float>& weight, int64_t heads,
                                       int64_t head_dim) {
  const auto count = static_cast<int64_t>(weight.size());
  check(head_dim % 2 == 0 && count % (heads * head_dim) == 0,
        "the weight does not have heads * head_dim rows");
  const int64_t columns = count / (heads * head_dim);
  std::vector<float> moved(weight.size());
  for (int64_t to = 0; to < heads * head_dim; ++to) {
    const int64_t row = to % head_dim;
    const int64_t from = to - row + row / 2 + (row % 2 == 0 ? 0 : head_dim / 2);
    std::copy_n(weight.begin() + from * columns, columns, moved.begin() + to * columns);
  }
  return moved;
}

std::vector<float> transposed(const std::vector<float>& values, int64_t rows, int64_t columns) {
  std::vector<float> result(values.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      result[static_cast<size_t>(c * rows + r)] = values[static_cast<size_t>(r * columns + c)];
    }
  }
  return result;
}

}  // namespace fp8train
