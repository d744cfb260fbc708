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
#include "tensor/level_formats.h"
#include "train/checkpoint/saved_state.h"
#include "train/checkpoint/value_checks.h"

namespace fp8train {
namespace {

constexpr const char* kOnlyFile = "optimizer.safetensors";
constexpr std::string_view kSecond = "moment2.";

/// Returns the box of all elements.
StateBox all_of(int64_t count, int64_t width) {
  return {.local = 0, .element = 0, .count = count, .columns = count, .width = width};
}

/// Returns a format that reads what was saved. It follows from the element type and the number of
/// scales: one, one for each group, or three for each group where the range is expanded. Codes of
/// four bits have those of a struct for each group.
TensorFormat readable_format(const SavedState& saved, const std::string& name, int64_t count) {
  TensorFormat format;
  format.dtype = saved.dtype_of(name);
  const int64_t scales = saved.count_of(name + kScaleSuffix);
  const int64_t groups = ceil_div(count, kStoredBlock.columns);
  if (format.dtype == DType::u8) {
    for (const TensorFormat& packed : level_formats()) {
      if (scales == stored_scales(packed, count)) {
        return packed;
      }
    }
  } else if (scales == 0) {
    return format;
  }
  format.policy = ScalePolicy::current;
  if (scales > 1) {
    format.block = kStoredBlock;
    format.expanded = scales == 3 * groups;
  }
  if (format.dtype == DType::u8 || (scales != 1 && scales != groups && !format.expanded)) {
    throw CheckpointError(fmt::format(
        "'{}' has {} elements and {} scales, which no stored format has", name, count, scales));
  }
  return format;
}

/// Returns all values of a tensor, whatever its format was.
std::vector<float> read_values(const SavedState& saved, const std::string& name,
                               const Sharding& part, int64_t used) {
  const int64_t count = part.whole.count();
  HostStored stored(readable_format(saved, name, count), count);
  const size_t size = stored.codes.size();
  const bool scaled = stored.tensor.format.is_scaled();
  stored.codes = saved.read(name, saved_codes(stored.tensor).dtype,
                            saved_box(stored.tensor, all_of(scaled ? count : used, part.width())));
  stored.codes.resize(size);  // padding is 0, and its extent that of the layout
  stored.tensor.codes.data = stored.codes.data();
  if (!stored.scales.empty()) {
    const int64_t scales = saved.count_of(name + kScaleSuffix);
    const int64_t width = stored_scales(stored.tensor.format, part.width());
    const std::vector<uint8_t> bytes =
        saved.read(name + kScaleSuffix, DType::f32, all_of(scales, width));
    std::memcpy(stored.scales.data(), bytes.data(), bytes.size());
  }
  return values_of(stored);
}

std::byte* bytes_at(const View& view, int64_t element) {
  return view.as<std::byte>() + static_cast<size_t>(element) * size_of(view.dtype);
}

/// Copies the part that this rank updates to the device.
void upload(Device& device, const HostStored& whole, const StateTensor& entry) {
  entry.for_each_box([&](const std::string& name, const View& part, const StateBox& box) {
    const View from = name == entry.name ? saved_codes(whole.tensor) : saved_scales(whole.tensor);
    box.for_each_row([&](int64_t local, int64_t element, int64_t count) {
      copy_from_host(device, View{bytes_at(part, local), part.dtype, {count}},
                     bytes_at(from, element));
    });
  });
}

}  // namespace

void refresh_optimizer_file(Engine& engine, OptimizerFile& file) {
  const std::vector<SavedTensor> saved = saved_tensors(engine);
  const StateWriter writer = state_writer(engine);
  file.file.name = writer.ranks == 1 ? std::string(kOnlyFile)
                                     : fmt::format("optimizer-{:05}-of-{:05}.safetensors",
                                                   writer.rank + 1, writer.ranks);
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

void load_state(Device& device, const SavedState& saved, const StateTensor& entry) {
  const bool scaled = entry.tensor.format.is_scaled();
  entry.for_each_box([&](const std::string& name, const View& part, StateBox box) {
    if (!scaled && box.is_range()) {  // padding is 0, and another layout has more or less of it
      box.count = std::min(box.count, std::max<int64_t>(entry.used - box.element, 0));
      box.columns = box.count;
    }
    if (box.count > 0) {
      copy_from_host(device, View{bytes_at(part, box.local), part.dtype, {box.count}},
                     saved.read(name, part.dtype, box).data());
    }
  });
}

void load_optimizer_files(const std::filesystem::path& checkpoint, Engine& engine) {
  const SavedState saved(checkpoint);
  std::vector<StateTensor> entries = state_tensors(engine);
  // In the order of the files, which are then read once.
  std::ranges::stable_sort(entries, {}, [&](const StateTensor& entry) {
    return saved.position(entry.name, saved_box(entry.tensor, {.element = entry.first}).element);
  });
  for (const StateTensor& entry : entries) {
    load_state(engine.device(), saved, entry);
  }
  for (const auto& [name, factor] : state_factors(engine)) {
    copy_from_host(engine.device(), factor, saved.read(name, DType::f32, all_of(1, 1)).data());
  }
  saved.require_hashes();
}

void convert_optimizer_files(const std::filesystem::path& checkpoint, Engine& engine) {
  const SavedState saved(checkpoint);
  const std::vector<StateTensor> all = state_tensors(engine);
  const auto values = [&](const StateTensor& entry) {
    return read_values(saved, entry.name, entry.sharding, entry.used);
  };
  std::map<std::string, const StateTensor*> second_moments;  // by parameter
  for (const StateTensor& entry : all) {
    if (entry.name.starts_with(kSecond)) {
      second_moments[entry.name.substr(kSecond.size())] = &entry;
    }
  }
  for (const StateTensor& entry : all) {
    if (entry.name.starts_with("value.") || entry.name.starts_with(kSecond)) {
      continue;  // has been rounded from the weights; comes with the first moment
    }
    const HostStored first = stored_in(entry.tensor.format, values(entry));
    upload(engine.device(), first, entry);
    const auto twin = second_moments.find(entry.name.substr(entry.name.find('.') + 1));
    if (twin != second_moments.end()) {
      const std::vector<float> exact = values(*twin->second);
      HostStored second = stored_in(twin->second->tensor.format, exact);
      if (!second.scales.empty()) {
        floor_second_moment(values_of(first), exact, second);
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
