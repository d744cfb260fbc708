#include "train/checkpoint/optimizer_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>

#include "base/error.h"
#include "base/math.h"
#include "base/text.h"
#include "io/safetensors/safetensors.h"
#include "ops/storage/storage.h"
#include "train/checkpoint/host_stored.h"
#include "train/checkpoint/resume_checks.h"

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

/// Every tensor of a checkpoint's optimizer files, by name without "@first".
class SavedState {
 public:
  explicit SavedState(const std::filesystem::path& checkpoint)
      : checkpoint_(checkpoint), manifest_(verify_checkpoint(checkpoint, Verify::sizes)) {
    for (const FileRecord& record : manifest_.files) {
      if (record.name.starts_with("optimizer")) {
        add_file(checkpoint / record.name);
      }
    }
  }

  /// Returns the type of its elements. Throws CheckpointError where the files have none.
  DType dtype_of(const std::string& name) const {
    const std::span<const Range> ranges = saved_ranges(name);
    if (ranges.empty()) {
      throw CheckpointError(
          fmt::format("{}: the optimizer's files have no '{}'", checkpoint_.string(), name));
    }
    const SafetensorsType& type = ranges.front().entry->type;
    if (!type.dtype || !is_stored_type(*type.dtype)) {
      throw CheckpointError(fmt::format("{}: '{}' is of the unknown type '{}'",
                                        checkpoint_.string(), name, type.name));
    }
    return *type.dtype;
  }

  /// Returns how many elements of it the files have.
  int64_t count_of(const std::string& name) const {
    int64_t count = 0;
    for (const Range& range : saved_ranges(name)) {
      count += range.entry->count();
    }
    return count;
  }

  /// Returns elements first .. first + count - 1 of the whole.
  std::vector<uint8_t> read(const std::string& name, DType dtype, int64_t first,
                            int64_t count) const {
    const size_t size = size_of(dtype);
    std::vector<uint8_t> result(static_cast<size_t>(count) * size);
    int64_t copied = 0;
    for (const Range& saved : saved_ranges(name)) {
      const int64_t begin = std::max(first, saved.first);
      const int64_t end = std::min(first + count, saved.first + saved.entry->count());
      if (begin >= end) continue;
      used_.insert(saved.file);
      if (const SafetensorsType& type = saved.entry->type; type.dtype != dtype) {
        require_hashes();  // a damaged header is no other run
        throw OtherRunError(fmt::format(
            "{}: '{}' is stored as {}, and this run stores it as {}; to continue that run, change "
            "its format back (precision in the configuration)",
            checkpoint_.string(), name, type.dtype ? name_of(*type.dtype) : type.name,
            name_of(dtype)));
      }
      files_[saved.file]->read(*saved.entry, static_cast<uint64_t>(begin - saved.first) * size,
                               static_cast<size_t>(end - begin) * size,
                               result.data() + static_cast<size_t>(begin - first) * size);
      copied += end - begin;
    }
    if (copied != count) {
      throw CheckpointError(fmt::format(
          "{}: of '{}' as {} the optimizer's files have {} of the elements {} .. {}",
          checkpoint_.string(), name, name_of(dtype), copied, first, first + count - 1));
    }
    return result;
  }

  /// Returns where the part of it with this element begins: file and byte.
  std::pair<size_t, uint64_t> position(const std::string& name, int64_t first) const {
    for (const Range& range : saved_ranges(name)) {
      if (first < range.first + range.entry->count()) {
        return {range.file, range.entry->begin};
      }
    }
    return {};
  }

  /// Throws CheckpointError where a file of which something has been read is not the manifest's.
  void require_hashes() const {
    for (const size_t i : used_) {
      require_hash(checkpoint_, manifest_, files_[i]->path().filename().string(),
                   files_[i]->hash());
    }
  }

 private:
  struct Range {
    size_t file;
    const SafetensorsEntry* entry;
    int64_t first = 0;
  };

  std::span<const Range> saved_ranges(const std::string& name) const {
    const auto found = ranges_.find(name);
    return found == ranges_.end() ? std::span<const Range>() : found->second;
  }

  void add_file(const std::filesystem::path& path) {
    files_.push_back(std::make_unique<SafetensorsFile>(path, SafetensorsFile::Reads::hashed));
    for (const SafetensorsEntry& entry : files_.back()->header().entries) {
      const size_t at = entry.name.rfind('@');
      Range range = {files_.size() - 1, &entry, 0};
      std::string name = entry.name.substr(0, at);
      if (at != std::string::npos) {
        // "NAME@FIRST" or, of scales, "NAME.scale@FIRST"
        const auto first = whole_number<int64_t>(std::string_view(entry.name).substr(at + 1));
        if (!first) {
          throw CheckpointError(
              fmt::format("{}: '{}' is not the name of a part", path.string(), entry.name));
        }
        range.first = *first;
      }
      ranges_[name].push_back(range);
    }
  }

  std::filesystem::path checkpoint_;
  CheckpointManifest manifest_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  mutable std::set<size_t> used_;
  std::map<std::string, std::vector<Range>> ranges_;
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
