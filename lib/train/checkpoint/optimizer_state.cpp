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
#include "train/checkpoint/value_checks.h"

namespace fp8train {
namespace {

constexpr const char* kOnlyFile = "optimizer.safetensors";
constexpr std::string_view kSecond = "moment2.";

void load(Device& device, const SavedState& saved, const StateTensor& entry) {
  const Encoded& tensor = entry.tensor;
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
                 saved.read(entry.name + kScaleSuffix, DType::f32, before, scales.count()).data());
}

/// Returns a format that reads what was saved. It follows from the element type and the number of
/// scales: one, one for each group, or three for each group where the range is expanded.
TensorFormat readable_format(const SavedState& saved, const std::string& name, int64_t count) {
  TensorFormat format;
  format.dtype = saved.dtype_of(name);
  const int64_t scales = saved.count_of(name + kScaleSuffix);
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
    const int64_t scales = saved.count_of(name + kScaleSuffix);
    const std::vector<uint8_t> bytes = saved.read(name + kScaleSuffix, DType::f32, 0, scales);
    std::memcpy(stored.scales.data(), bytes.data(), bytes.size());
  }
  return values_of(stored);
}

/// Copies the part that this rank updates to the device.
void upload(Device& device, const HostStored& whole, const StateTensor& entry) {
  const Encoded part = part_of(whole.tensor, entry.first, entry.tensor.count());
  if (part.count() > 0) {
    copy_from_host(device, entry.tensor.codes, part.codes.data);
  }
  if (!part.scales.empty()) {
    copy_from_host(device, saved_scales(entry.tensor), saved_scales(part).data);
  }
}

}  // namespace

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
  for (const auto& [name, factor] : state_factors(engine)) {
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
  for (const auto& [name, factor] : state_factors(engine)) {
    copy_from_host(engine.device(), factor, &one);
  }
  saved.require_hashes();
}

}  // namespace fp8train
