#include "io/safetensors/tensor_source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/input_file.h"
#include "io/hf_config.h"
#include "io/strict_json.h"
#include "model/model_config.h"

namespace fp8train {
namespace {

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
/// Base models, of GPT-2 and of the others (base_model_prefix in transformers).
constexpr std::string_view kBasePrefixes[] = {"transformer.", "model."};
constexpr std::string_view kWrappers[] = {"_orig_mod.", "module."};

/// The name that transformers 5 has for a tensor of Mixtral while the model runs, in which its
/// experts are in one tensor; empty: it is none of Mixtral.
std::string name_after_mixtral(std::string name) {
  constexpr std::string_view kModule = ".block_sparse_moe.";
  constexpr std::pair<std::string_view, std::string_view> kMatrices[] = {
      {".w1.", ".gate_proj."}, {".w3.", ".up_proj."}, {".w2.", ".down_proj."}};
  const size_t module = name.find(kModule);
  if (module == std::string::npos) {
    return "";
  }
  name.replace(module, kModule.size(), ".mlp.");
  for (const auto& [from, to] : kMatrices) {
    if (const size_t at = name.find(from, module); at != std::string::npos) {
      name.replace(at, from.size(), to);
    }
  }
  return name;
}

const std::filesystem::path& as_complete(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path)) {
    refuse_incomplete(path);
  }
  return path;
}

}  // namespace

void refuse_incomplete(const std::filesystem::path& folder) {
  std::error_code unseen;
  std::filesystem::path name = std::filesystem::weakly_canonical(folder, unseen);
  name = name.has_filename() ? name : name.parent_path();
  if (name.extension() == ".partial") {
    throw CheckpointError(
        fmt::format("{}: a checkpoint whose save was interrupted; take a folder without .partial",
                    folder.string()));
  }
  if (std::filesystem::exists(folder / "state.json", unseen) &&
      !std::filesystem::exists(folder / "MANIFEST.json", unseen)) {
    throw CheckpointError(fmt::format(
        "{}: a checkpoint without its MANIFEST.json, so that nobody knows whether it is complete; "
        "take another one, or copy config.json, tokenizer.json and model.safetensors alone",
        folder.string()));
  }
}

TensorSource::TensorSource(const std::filesystem::path& path)
    : TensorSource(as_complete(path), [](size_t) { return SafetensorsFile::Reads::plain; }) {}

TensorSource::TensorSource(const std::filesystem::path& path,
                           const std::function<SafetensorsFile::Reads(size_t file)>& reads)
    : path_(path) {
  if (std::filesystem::is_directory(path) && holds_adapters(path)) {
    add_adapters(path);
    return;
  }
  if (!std::filesystem::is_directory(path)) {
    open_single(SafetensorsFile(path, reads(0)));
  } else if (has_file(path / kSingle)) {
    open_single(SafetensorsFile(path / kSingle, reads(0)));
  } else if (has_file(path / kIndex)) {
    open_index(path / kIndex, reads);
  } else {
    const std::string what = describe_other_folder(path);
    throw CheckpointError(fmt::format("{}: holds neither {} nor {}{}{}", path.string(), kSingle,
                                      kIndex, what.empty() ? "" : "; ", what));
  }
  decode_weights();
  if (std::filesystem::is_directory(path)) {
    split_experts();
  }
  list_names();
  find_wrapper();
}

std::string TensorSource::described(const std::string& name) const {
  const TensorLocation* const location = location_of(name);
  const auto found = location == nullptr ? fused_.end() : fused_.find(location->entry.name);
  return found == fused_.end() ? name : fmt::format("{} (of {})", name, found->second);
}

void TensorSource::list_names() {
  names_.clear();
  for (const auto& [name, location] : locations_) {
    names_.push_back(name);
  }
}

void TensorSource::rename(const std::map<std::string, std::string>& names) {
  std::map<std::string, TensorLocation> renamed;
  for (const auto& [from, to] : names) {
    const auto found = locations_.find(from);
    check(found != locations_.end(), "a tensor that gets another name is there");
    TensorLocation location = found->second;
    location.entry.name = to;
    check(renamed.emplace(to, std::move(location)).second, "each tensor gets a name of its own");
  }
  locations_ = std::move(renamed);
  list_names();
  wrapper_.clear();
}

/// Wrappers may lie within each other.
void TensorSource::find_wrapper() {
  const auto all_begin_with = [&](const std::string& prefix) {
    return std::all_of(names_.begin(), names_.end(),
                       [&](const std::string& name) { return name.starts_with(prefix); });
  };
  const auto next = [&]() -> std::string {
    for (const std::string_view wrapper : kWrappers) {
      if (std::string prefix = wrapper_ + std::string(wrapper); all_begin_with(prefix)) {
        return prefix;
      }
    }
    return wrapper_;
  };
  if (names_.empty()) {
    return;
  }
  for (std::string longer = next(); longer != wrapper_; longer = next()) {
    wrapper_ = longer;
  }
}

TensorSource::TensorSource(SafetensorsFile file) : path_(file.path()) {
  open_single(std::move(file));
  list_names();
}

void TensorSource::open_single(SafetensorsFile file) {
  files_.push_back(std::move(file));
  for (const SafetensorsEntry& entry : files_.front().header().entries) {
    locations_.emplace(entry.name, TensorLocation{0, entry});
  }
}

void TensorSource::open_index(const std::filesystem::path& index,
                              const std::function<SafetensorsFile::Reads(size_t file)>& reads) {
  const nlohmann::ordered_json document = detail::read_strict_json(index.string());
  const auto fail = [&](const std::string& what) {
    return CheckpointError(fmt::format("{}: {}", index.string(), what));
  };
  if (!document.is_object() || !document.contains("weight_map") ||
      !document["weight_map"].is_object()) {
    throw fail("no object 'weight_map'");
  }
  std::map<std::string, std::vector<std::string>> tensors_of;
  for (const auto& [tensor, file] : document["weight_map"].items()) {
    if (!file.is_string() || !detail::is_plain_name(file.get<std::string>())) {
      throw fail(
          fmt::format("tensor '{}' is mapped to {}, which is not a plain file name in the "
                      "same folder",
                      tensor, file.dump()));
    }
    tensors_of[file.get<std::string>()].push_back(tensor);
  }
  for (const auto& [file, tensors] : tensors_of) {
    files_.emplace_back(index.parent_path() / file, reads(files_.size()));
    for (const std::string& tensor : tensors) {
      const SafetensorsEntry* entry = files_.back().find(tensor);
      if (entry == nullptr) {
        throw fail(fmt::format("tensor '{}' is not in {}", tensor, file));
      }
      locations_.emplace(tensor, TensorLocation{files_.size() - 1, *entry});
    }
  }
}

const TensorLocation* TensorSource::location_of(const std::string& name) const {
  auto found = locations_.find(name);
  if (found == locations_.end()) {
    found = locations_.find(wrapper_ + name);
  }
  for (const std::string_view base : kBasePrefixes) {
    if (found == locations_.end() && name.starts_with(base)) {
      found = locations_.find(wrapper_ + name.substr(base.size()));
    }
  }
  if (found == locations_.end()) {
    const std::string other = name_after_mixtral(name);
    return other.empty() ? nullptr : location_of(other);
  }
  return &found->second;
}

const SafetensorsEntry* TensorSource::find(const std::string& name) const {
  const TensorLocation* location = location_of(name);
  return location == nullptr ? nullptr : &location->entry;
}

const EncodedWeight* TensorSource::find_codes(const std::string& name) const {
  const TensorLocation* location = location_of(name);
  const bool is_encoded =
      location != nullptr && location->file >= files_.size() && location->file < kAdapted;
  return is_encoded ? &encoded_[location->file - files_.size()] : nullptr;
}

std::vector<const SafetensorsEntry*> TensorSource::entries() const {
  std::vector<const TensorLocation*> locations;
  for (const auto& [name, location] : locations_) {
    locations.push_back(&location);
  }
  std::ranges::stable_sort(locations, {}, [](const TensorLocation* one) {
    return std::tuple(one->file, one->entry.begin, one->entry.end);
  });
  std::vector<const SafetensorsEntry*> all;
  for (const TensorLocation* location : locations) {
    all.push_back(&location->entry);
  }
  return all;
}

std::map<std::string, std::string> TensorSource::metadata() const {
  std::map<std::string, std::string> all;
  for (const SafetensorsFile& file : files_) {
    all.insert(file.header().metadata.begin(), file.header().metadata.end());
  }
  return all;
}

bool TensorSource::equal(const SafetensorsEntry& a, const SafetensorsEntry& b) const {
  const TensorLocation& at_a = *location_of(a.name);
  const TensorLocation& at_b = *location_of(b.name);
  if (a.shape != b.shape) {
    return false;
  }
  if (a.type.name != b.type.name || std::max(at_a.file, at_b.file) >= files_.size()) {
    return values_of(at_a, 0, a.count()) == values_of(at_b, 0, b.count());
  }
  const SafetensorsFile& file_a = files_[at_a.file];
  const SafetensorsFile& file_b = files_[at_b.file];
  constexpr uint64_t kPart = uint64_t{1} << 20;
  std::vector<char> part_a(kPart), part_b(kPart);
  for (uint64_t at = 0; at < a.bytes(); at += kPart) {
    const auto bytes = static_cast<size_t>(std::min(kPart, a.bytes() - at));
    file_a.read(a, at, bytes, part_a.data());
    file_b.read(b, at, bytes, part_b.data());
    if (std::memcmp(part_a.data(), part_b.data(), bytes) != 0) {
      return false;
    }
  }
  return true;
}

std::vector<char> TensorSource::read_bytes(const SafetensorsEntry& entry) const {
  const TensorLocation& location = *location_of(entry.name);
  std::vector<char> bytes(entry.bytes());
  if (location.file < files_.size()) {
    files_[location.file].read(entry, bytes.data());
  } else {
    std::memcpy(bytes.data(), values_of(location, 0, entry.count()).data(), bytes.size());
  }
  return bytes;
}

std::vector<float> TensorSource::values_of(const TensorLocation& location, int64_t first,
                                           int64_t count) const {
  if (location.file < files_.size()) {
    return files_[location.file].read_f32(location.entry, first, count);
  }
  if (location.file >= kAdapted) {
    const auto& [weight, of] = adapted_[location.file - kAdapted];
    std::vector<float> values = values_of(of, first, count);
    adapters_->add(weight, location.entry.shape.back(), first, values);
    return values;
  }
  const EncodedWeight& weight = encoded_[location.file - files_.size()];
  if (scales_.first != location.file) {
    scales_ = {location.file, read_scales(weight, files_)};
  }
  return decode_weight(weight, scales_.second, files_, first, count);
}

std::vector<float> TensorSource::read_f32(const std::string& name,
                                          const std::vector<int64_t>& shape) const {
  return read_f32(name, shape, 0,
                  std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>()));
}

std::vector<float> TensorSource::read_f32(const std::string& name,
                                          const std::vector<int64_t>& shape, int64_t first,
                                          int64_t count) const {
  const TensorLocation* location = location_of(name);
  if (location == nullptr) {
    throw CheckpointError(fmt::format("{}: there is no tensor '{}'", path_.string(), name));
  }
  if (location->entry.shape != shape) {
    throw CheckpointError(fmt::format(
        "{}: tensor '{}' has shape [{}], expected [{}]", path_.string(), described(name),
        fmt::join(location->entry.shape, ", "), fmt::join(shape, ", ")));
  }
  std::vector<float> values = values_of(*location, first, count);
  const auto bad =
      std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
  if (bad != values.end()) {
    throw CheckpointError(fmt::format("{}: tensor '{}' element {} is {}", path_.string(), name,
                                      first + (bad - values.begin()), *bad));
  }
  return values;
}

}  // namespace fp8train
