#include "io/safetensors/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/input_file.h"
#include "base/math.h"
#include "io/strict_json.h"
#include "model/hf_names.h"
#include "numeric/bulk.h"

namespace fp8train {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kLengthBytes = sizeof(uint64_t);

template <typename Stored>
std::vector<Stored> read_stored(const SafetensorsFile& file, const SafetensorsEntry& entry,
                                int64_t first, int64_t count) {
  std::vector<Stored> stored(static_cast<size_t>(count));
  file.read(entry, static_cast<uint64_t>(first) * sizeof(Stored), stored.size() * sizeof(Stored),
            stored.data());
  return stored;
}

template <typename Stored>
std::vector<float> read_decoded(const SafetensorsFile& file, const SafetensorsEntry& entry,
                                int64_t first, int64_t count) {
  const auto stored = read_stored<Stored>(file, entry, first, count);
  std::vector<float> values(stored.size());
  decode(stored.data(), values.data(), values.size());
  return values;
}

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

std::vector<std::vector<SafetensorsEntry>> split(std::vector<SafetensorsEntry> entries,
                                                 uint64_t max_bytes) {
  std::ranges::sort(entries, {}, &SafetensorsEntry::name);
  std::vector<uint64_t> bytes;
  std::ranges::transform(entries, std::back_inserter(bytes), &SafetensorsEntry::bytes);
  const std::vector<size_t> file_of = divide_into_files(bytes, max_bytes);
  std::vector<std::vector<SafetensorsEntry>> shards(file_of.empty() ? 1 : file_of.back() + 1);
  for (size_t i = 0; i < entries.size(); ++i) {
    shards[file_of[i]].push_back(std::move(entries[i]));
  }
  return shards;
}

}  // namespace

void SafetensorsFile::read_exactly(uint64_t offset, void* to, size_t bytes) const {
  detail::as_checkpoint_error(
      [&] { hashed_ ? hashed_->read(file_, offset, to, bytes) : file_.read(offset, to, bytes); });
}

std::string SafetensorsFile::hash() const {
  check(hashed_ != nullptr, "the file is hashed");
  return detail::as_checkpoint_error([&] { return hashed_->digest(file_); });
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path, Reads reads)
    : file_(detail::as_checkpoint_error([&] { return InputFile(path); })),
      hashed_(reads == Reads::hashed ? std::make_unique<HashedReads>() : nullptr) {
  const std::string where = path.string();
  detail::as_checkpoint_error([&] { refuse_lfs_pointer(file_); });
  if (file_.size() < kLengthBytes) {
    throw CheckpointError(
        fmt::format("{}: {} bytes cannot be a safetensors file", where, file_.size()));
  }
  uint64_t length = 0;
  read_exactly(0, &length, sizeof(length));
  if (length > kMaxHeaderBytes || length > file_.size() - kLengthBytes) {
    throw CheckpointError(fmt::format(
        "{}: a header of {} bytes is announced, but the file has {} bytes and a header at most {}; "
        "it is cut off or not a safetensors file",
        where, length, file_.size(), kMaxHeaderBytes));
  }
  std::string json(length, '\0');
  read_exactly(kLengthBytes, json.data(), json.size());
  data_start_ = kLengthBytes + length;
  header_ = parse_safetensors_header(json, file_.size() - data_start_, where);
  for (size_t i = 0; i < header_.entries.size(); ++i) {
    by_name_.emplace(header_.entries[i].name, i);
  }
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &header_.entries[found->second];
}

void SafetensorsFile::read(const SafetensorsEntry& entry, void* to) const {
  read_exactly(data_start_ + entry.begin, to, entry.bytes());
}

void SafetensorsFile::read(const SafetensorsEntry& entry, uint64_t offset, size_t bytes,
                           void* to) const {
  check(offset + bytes <= entry.bytes(), "a part lies within its tensor");
  read_exactly(data_start_ + entry.begin + offset, to, bytes);
}

std::vector<float> SafetensorsFile::read_f32(const SafetensorsEntry& entry, int64_t first,
                                             int64_t count) const {
  if (entry.type.dtype == DType::f32) {
    return read_stored<float>(*this, entry, first, count);
  }
  if (entry.type.dtype == DType::bf16) {
    return read_decoded<bf16>(*this, entry, first, count);
  }
  if (entry.type.dtype == DType::f16) {
    return read_decoded<f16>(*this, entry, first, count);
  }
  if (entry.type.dtype == DType::f64) {
    const auto stored = read_stored<double>(*this, entry, first, count);
    std::vector<float> values(stored.size());
    std::transform(stored.begin(), stored.end(), values.begin(),
                   [](double value) { return static_cast<float>(value); });
    return values;
  }
  throw CheckpointError(
      fmt::format("{}: tensor '{}' is {}; only F32, BF16, F16 and F64 can be read as weights",
                  path().string(), entry.name, entry.type.name));
}

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

std::string model_index(const std::map<std::string, std::string>& file_of, uint64_t bytes) {
  nlohmann::ordered_json map = nlohmann::ordered_json::object();
  auto& object = map.get_ref<nlohmann::ordered_json::object_t&>();
  for (const auto& [name, file] : file_of) {
    object.push_back({name, file});
  }
  const nlohmann::ordered_json index = {{"metadata", {{"total_size", bytes}}}, {"weight_map", map}};
  return index.dump(2) + "\n";
}

ShardedWriter::ShardedWriter(const std::filesystem::path& folder,
                             std::vector<SafetensorsEntry> entries,
                             const std::map<std::string, std::string>& metadata,
                             uint64_t max_shard_bytes)
    : folder_(folder) {
  std::vector<std::vector<SafetensorsEntry>> shards = split(std::move(entries), max_shard_bytes);
  for (size_t i = 0; i < shards.size(); ++i) {
    for (const SafetensorsEntry& entry : shards[i]) {
      if (!shard_of_.emplace(entry.name, i).second) {
        throw CheckpointError(fmt::format("the tensor name '{}' is used twice", entry.name));
      }
      bytes_ += entry.bytes();
    }
    shards_.push_back(std::make_unique<SafetensorsWriter>(
        folder / model_file_name(i, shards.size()), std::move(shards[i]), metadata));
  }
}

void ShardedWriter::write(const std::string& name, const void* data) {
  const auto found = shard_of_.find(name);
  check(found != shard_of_.end(), "a tensor that was not announced");
  shards_[found->second]->write(name, data);
}

void ShardedWriter::commit() {
  for (const auto& shard : shards_) {
    shard->commit();
  }
  if (shards_.size() == 1) {
    return;
  }
  std::map<std::string, std::string> file_of;
  for (const auto& [name, shard] : shard_of_) {
    file_of[name] = model_file_name(shard, shards_.size());
  }
  write_file_atomically(folder_ / "model.safetensors.index.json", model_index(file_of, bytes_));
}

}  // namespace fp8train
