#include "io/safetensors/tensor_source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "io/strict_json.h"

namespace fp8train {
namespace {

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr std::string_view kGpt2Prefix = "transformer.";

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

TensorSource::TensorSource(const std::filesystem::path& path) : path_(path) {
  if (std::filesystem::is_directory(path)) {
    refuse_incomplete(path);
  }
  if (!std::filesystem::is_directory(path)) {
    open_single(SafetensorsFile(path));
  } else if (std::filesystem::exists(path / kIndex)) {
    open_index(path / kIndex);
  } else if (std::filesystem::exists(path / kSingle)) {
    open_single(SafetensorsFile(path / kSingle));
  } else {
    throw CheckpointError(fmt::format(
        "{}: holds neither {} nor {}; weights in other formats (.bin, .pt) are not read because "
        "unpickling runs code, convert them with transformers' save_pretrained",
        path.string(), kSingle, kIndex));
  }
  for (const auto& [name, location] : locations_) {
    names_.push_back(name);
  }
}

TensorSource::TensorSource(SafetensorsFile file) : path_(file.path()) {
  open_single(std::move(file));
  for (const auto& [name, location] : locations_) {
    names_.push_back(name);
  }
}

void TensorSource::open_single(SafetensorsFile file) {
  files_.push_back(std::move(file));
  for (const SafetensorsEntry& entry : files_.front().header().entries) {
    locations_.emplace(entry.name, Location{0, &entry});
  }
}

void TensorSource::open_index(const std::filesystem::path& index) {
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
    files_.emplace_back(index.parent_path() / file);
    for (const std::string& tensor : tensors) {
      const SafetensorsEntry* entry = files_.back().find(tensor);
      if (entry == nullptr) {
        throw fail(fmt::format("tensor '{}' is not in {}", tensor, file));
      }
      locations_.emplace(tensor, Location{files_.size() - 1, entry});
    }
  }
}

const TensorSource::Location* TensorSource::location_of(const std::string& name) const {
  auto found = locations_.find(name);
  if (found == locations_.end() && name.starts_with(kGpt2Prefix)) {
    found = locations_.find(name.substr(kGpt2Prefix.size()));
  }
  return found == locations_.end() ? nullptr : &found->second;
}

const SafetensorsEntry* TensorSource::find(const std::string& name) const {
  const Location* location = location_of(name);
  return location == nullptr ? nullptr : location->entry;
}

std::vector<const SafetensorsEntry*> TensorSource::entries() const {
  std::vector<const SafetensorsEntry*> all;
  for (const SafetensorsFile& file : files_) {
    for (const SafetensorsEntry& entry : file.header().entries) {
      const auto location = locations_.find(entry.name);
      if (location != locations_.end() && location->second.entry == &entry) {
        all.push_back(&entry);
      }
    }
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

std::vector<char> TensorSource::read_bytes(const SafetensorsEntry& entry) const {
  std::vector<char> bytes(entry.bytes());
  files_[location_of(entry.name)->file].read(entry, bytes.data());
  return bytes;
}

std::vector<float> TensorSource::read_f32(const std::string& name,
                                          const std::vector<int64_t>& shape) const {
  const Location* location = location_of(name);
  if (location == nullptr) {
    throw CheckpointError(fmt::format("{}: there is no tensor '{}'", path_.string(), name));
  }
  if (location->entry->shape != shape) {
    throw CheckpointError(fmt::format("{}: tensor '{}' has shape [{}], expected [{}]",
                                      path_.string(), name, fmt::join(location->entry->shape, ", "),
                                      fmt::join(shape, ", ")));
  }
  std::vector<float> values = files_[location->file].read_f32(*location->entry);
  const auto bad =
      std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
  if (bad != values.end()) {
    throw CheckpointError(fmt::format("{}: tensor '{}' element {} is {}", path_.string(), name,
                                      bad - values.begin(), *bad));
  }
  return values;
}

}  // namespace fp8train
