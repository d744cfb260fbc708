#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_set>

#include "base/error.h"
#include "base/math.h"
#include "io/safetensors/safetensors.h"

namespace fp8train {
namespace {

constexpr size_t kHeaderAlignment = 8;

uint64_t element_bytes(const SafetensorsEntry& entry) {
  const auto count = static_cast<uint64_t>(entry.count());
  return count == 0 ? 0 : entry.bytes() / count;
}

/// Puts the entries into the order of a file and gives them their offsets; returns what is
/// before the data.
std::string lay_out(std::vector<SafetensorsEntry>& entries,
                    const std::map<std::string, std::string>& metadata) {
  std::sort(entries.begin(), entries.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              const uint64_t a_size = element_bytes(a);
              const uint64_t b_size = element_bytes(b);
              return a_size != b_size ? a_size > b_size : a.name < b.name;
            });
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  header["__metadata__"] = metadata;
  header["__metadata__"]["format"] = "pt";
  uint64_t position = 0;
  std::unordered_set<std::string_view> names;
  // Its own functions look through all keys for each.
  auto& object = header.get_ref<nlohmann::ordered_json::object_t&>();
  for (SafetensorsEntry& entry : entries) {
    if (!names.insert(entry.name).second) {
      throw CheckpointError(fmt::format("the tensor name '{}' is used twice", entry.name));
    }
    const uint64_t end = position + entry.bytes();
    object.push_back({entry.name, nlohmann::ordered_json{{"dtype", entry.type.name},
                                                         {"shape", entry.shape},
                                                         {"data_offsets", {position, end}}}});
    entry.begin = position;
    entry.end = end;
    position = end;
  }
  std::string json = header.dump();
  json.resize(round_up(json.size(), kHeaderAlignment), ' ');
  const uint64_t length = json.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + json;
}

}  // namespace

SafetensorsEntry safetensors_entry(const std::string& name, DType dtype,
                                   const std::vector<int64_t>& shape) {
  SafetensorsEntry entry = {name, safetensors_type(dtype), shape, 0, 0};
  entry.end = static_cast<uint64_t>(entry.count()) * size_of(dtype);
  return entry;
}

void write_safetensors(const std::vector<TensorBytes>& tensors,
                       const std::map<std::string, std::string>& metadata, const ByteSink& sink) {
  std::vector<SafetensorsEntry> entries;
  std::map<std::string, const TensorBytes*> by_name;
  for (const TensorBytes& tensor : tensors) {
    entries.push_back(safetensors_entry(tensor.name, tensor.dtype, tensor.shape));
    by_name.emplace(tensor.name, &tensor);
  }
  const std::string head = lay_out(entries, metadata);
  sink(head.data(), head.size());
  for (const SafetensorsEntry& entry : entries) {
    const TensorBytes& tensor = *by_name.at(entry.name);
    tensor.stream ? tensor.stream(sink) : sink(tensor.data, entry.bytes());
  }
}

void write_safetensors(const std::vector<TensorBytes>& tensors,
                       const std::map<std::string, std::string>& metadata,
                       const std::filesystem::path& path) {
  AtomicFile file(path);
  write_safetensors(tensors, metadata,
                    [&](const void* data, size_t bytes) { file.write(data, bytes); });
  file.commit();
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     std::vector<SafetensorsEntry> entries,
                                     const std::map<std::string, std::string>& metadata)
    : file_(path) {
  const std::string head = lay_out(entries, metadata);
  file_.write(head);
  data_start_ = head.size();
  for (SafetensorsEntry& entry : entries) {
    std::string name = entry.name;
    missing_.emplace(std::move(name), std::move(entry));
  }
}

void SafetensorsWriter::write(const std::string& name, const void* data) {
  const auto found = missing_.find(name);
  check(found != missing_.end(), "safetensors: a tensor that was not announced or was written");
  file_.write_at(data_start_ + found->second.begin, data, found->second.bytes());
  missing_.erase(found);
}

void SafetensorsWriter::commit() {
  check(missing_.empty(), "safetensors: a tensor that was announced is missing");
  file_.commit();
}

}  // namespace fp8train
