#include "io/safetensors/sharded_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/atomic_file.h"
#include "base/error.h"
#include "model/hf_names.h"

namespace fp8train {
namespace {

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
