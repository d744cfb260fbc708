#include "train/checkpoint/optimizer_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>

#include "base/error.h"
#include "base/math.h"
#include "io/safetensors/safetensors.h"
#include "ops/storage/storage.h"
#include "train/checkpoint/host_stored.h"
#include "train/checkpoint/saved_state.h"
#include "train/step/value_checks.h"

namespace fp8train {
namespace {

constexpr const char* kOnlyFile = "optimizer.safetensors";
constexpr const char* kScale = ".scale";
constexpr std::string_view kSecond = "moment2.";

/// What is stored of a parameter, or of a part of it.
struct StateTensor {
  std::string name;     ///< "moment1.layers.0.mlp.up.weight"
  StoredTensor tensor;  ///< on the device, this rank's part
  Shape shape;          ///< of the whole
  int64_t first = 0;    ///< element that the part begins with
  bool whole = true;
};

/// Returns what this rank updates, in the order of the file. A rank that has no elements of a
/// tensor with one scale has the scale all the same.
std::vector<StateTensor> state_tensors(Engine& engine) {
  std::vector<StateTensor> found;
  const Optimizer& optimizer = engine.optimizer();
  const ParameterStore& store = engine.model().parameters();
  const auto add = [&](const std::string& role, const Parameter& parameter,
                       const StoredTensor& tensor) {
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

/// Returns the factors of automatic scales, which are the same on all ranks.
std::vector<std::pair<std::string, View>> factors(Engine& engine) {
  std::vector<std::pair<std::string, View>> found;
  for (const auto& parameter : engine.model().parameters().all()) {
    if (parameter->automatic != nullptr) {
      found.emplace_back("gradient." + parameter->name + ".factor",
                         View{&parameter->automatic->factor, DType::f32, {1}});
    }
  }
  return found;
}

std::vector<int64_t> extents(const Shape& shape) {
  std::vector<int64_t> result;
  for (size_t i = 0; i < shape.rank(); ++i) {
    result.push_back(shape[i]);
  }
  return result;
}

/// Returns the scales without the memory for an amax that follows the one scale of a tensor.
View saved_scales(const StoredTensor& tensor) {
  return tensor.format.block == per::tensor ? View{tensor.scales.data, DType::f32, {1}}
                                            : tensor.scales;
}

std::string part_name(const std::string& name, int64_t first) {
  return fmt::format("{}@{}", name, first);
}

/// A tensor of the file.
struct SavedTensor {
  std::string name;
  View view;
  std::vector<int64_t> shape;
};

void load(Device& device, const SavedState& saved, const StateTensor& entry) {
  const StoredTensor& tensor = entry.tensor;
  if (tensor.count() > 0) {
    copy_from_host(device, tensor.codes,
                   saved.read(entry.name, tensor.codes.dtype, entry.first, tensor.count()).data());
  }
  if (tensor.scales.empty()) {
    return;
  }
  const View scales = saved_scales(tensor);
  const bool single = tensor.format.block == per::tensor;
  const int64_t before = single ? 0 : stored_scales(tensor.format, entry.first);
  copy_from_host(device, scales,
                 saved.read(entry.name + kScale, DType::f32, before, scales.count()).data());
}

/// Returns a format that reads what was saved. It follows from the element type and the number of
/// scales: one, one for each group, or three for each group where the range is expanded.
TensorFormat readable_format(const SavedState& saved, const std::string& name, int64_t count) {
  TensorFormat format;
  format.dtype = saved.dtype_of(name);
  const int64_t scales = saved.count_of(name + kScale);
  const int64_t groups = ceil_div(count, kStoredBlock.columns);
  if (scales == 0) {
    return format;
  }
  format.policy = ScalePolicy::current;
  if (scales > 1) {
    format.block = kStoredBlock;
    format.expanded = scales == 3 * groups;
  }
  if (scales != 1 && scales != groups && !format.expanded) {
    throw CheckpointError(fmt::format(
        "'{}' has {} elements and {} scales, which no stored format has", name, count, scales));
  }
  return format;
}

/// Returns all values of a tensor, whatever its format was.
std::vector<float> read_values(const SavedState& saved, const std::string& name, int64_t count) {
  HostStored stored(readable_format(saved, name, count), count);
  stored.codes = saved.read(name, stored.tensor.format.dtype, 0, count);
  stored.tensor.codes.data = stored.codes.data();
  if (!stored.scales.empty()) {
    const int64_t scales = saved.count_of(name + kScale);
    const std::vector<uint8_t> bytes = saved.read(name + kScale, DType::f32, 0, scales);
    std::memcpy(stored.scales.data(), bytes.data(), bytes.size());
  }
  return values_of(stored);
}

/// Copies the part that this rank updates to the device.
void upload(Device& device, const HostStored& whole, const StateTensor& entry) {
  const StoredTensor part = part_of(whole.tensor, entry.first, entry.tensor.count());
  if (part.count() > 0) {
    copy_from_host(device, entry.tensor.codes, part.codes.data);
  }
  if (!part.scales.empty()) {
    copy_from_host(device, saved_scales(entry.tensor), saved_scales(part).data);
  }
}

/// Returns what this rank's file has, in its order.
std::vector<SavedTensor> saved_tensors(Engine& engine) {
  std::vector<SavedTensor> saved;
  for (const StateTensor& entry : state_tensors(engine)) {
    const StoredTensor& tensor = entry.tensor;
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
    const std::string scale = entry.name + kScale;
    // One scale for the whole is saved with the first part.
    const int64_t first = grouped ? stored_scales(tensor.format, entry.first) : 0;
    if (entry.whole || grouped || entry.first == 0) {
      saved.push_back({entry.whole ? scale : part_name(scale, first), scales, {scales.count()}});
    }
  }
  const auto share = engine.model().parameters().share();
  if (!share || share->rank == 0) {
    for (const auto& [name, factor] : factors(engine)) {
      saved.push_back({name, factor, {1}});
    }
  }
  return saved;
}

}  // namespace

bool writes_optimizer(Engine& engine, int rank) {
  const auto share = engine.model().parameters().share();
  return share ? share->writes : rank == 0;
}

void refresh_optimizer_file(Engine& engine, OptimizerFile& file) {
  const std::vector<SavedTensor> saved = saved_tensors(engine);
  const auto share = engine.model().parameters().share();
  file.file.name =
      !share ? std::string(kOnlyFile)
             : fmt::format("optimizer-{:05}-of-{:05}.safetensors", share->rank + 1, share->ranks);
  file.file.tensors.clear();
  file.memory.resize(saved.size());
  for (size_t i = 0; i < saved.size(); ++i) {
    void* bytes = file.memory[i].resize(saved[i].view.bytes());
    copy_to_host(engine.device(), bytes, saved[i].view);
    if (const std::string bad =
            impossible_state(saved[i].name, bytes, saved[i].view.dtype, saved[i].view.count());
        !bad.empty()) {
      throw NumericError(bad + ": training has diverged, and nothing of this step is written");
    }
    file.file.tensors.push_back({saved[i].name, saved[i].view.dtype, saved[i].shape, bytes});
  }
}

size_t optimizer_file_bytes(Engine& engine) {
  size_t bytes = 0;
  for (const SavedTensor& saved : saved_tensors(engine)) {
    bytes += saved.view.bytes();
  }
  return bytes;
}

void load_optimizer_files(const std::filesystem::path& checkpoint, Engine& engine) {
  const SavedState saved(checkpoint);
  std::vector<StateTensor> entries = state_tensors(engine);
  // In the order of the files, which are then read once.
  std::ranges::stable_sort(entries, {}, [&](const StateTensor& entry) {
    return saved.position(entry.name, entry.first);
  });
  for (const StateTensor& entry : entries) {
    load(engine.device(), saved, entry);
  }
  for (const auto& [name, factor] : factors(engine)) {
    copy_from_host(engine.device(), factor, saved.read(name, DType::f32, 0, 1).data());
  }
  saved.require_hashes();
}

void convert_optimizer_files(const std::filesystem::path& checkpoint, Engine& engine) {
  const SavedState saved(checkpoint);
  const std::vector<StateTensor> all = state_tensors(engine);
  const auto converted = [&](const StateTensor& entry) {
    return stored_in(entry.tensor.format, read_values(saved, entry.name, entry.shape.count()));
  };
  std::map<std::string, const StateTensor*> second_moments;  // by parameter
  for (const StateTensor& entry : all) {
    if (entry.name.starts_with(kSecond)) {
      second_moments[entry.name.substr(kSecond.size())] = &entry;
    }
  }
  for (const StateTensor& entry : all) {
    if (entry.name.starts_with("value.") || entry.name.starts_with(kSecond)) {
      continue;  // has been rounded from model.safetensors; comes with the first moment
    }
    const HostStored first = converted(entry);
    upload(engine.device(), first, entry);
    const auto twin = second_moments.find(entry.name.substr(entry.name.find('.') + 1));
    if (twin != second_moments.end()) {
      HostStored second = converted(*twin->second);
      if (!second.scales.empty()) {
        floor_second_moment(values_of(first), second);
      }
      upload(engine.device(), second, *twin->second);
    }
  }
  const float one = 1.0F;
  for (const auto& [name, factor] : factors(engine)) {
    copy_from_host(engine.device(), factor, &one);
  }
  saved.require_hashes();
}

}  // namespace fp8train
