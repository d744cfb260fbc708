#include "io/safetensors/sharded_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/atomic_file.h"
#include "base/error.h"

namespace fp8train {
namespace {

std::vector<std::vector<SafetensorsEntry>> split(std::vector<SafetensorsEntry> entries,
                                                 uint64_t max_bytes) {
  std::sort(entries.begin(), entries.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) { return a.name < b.name; });
  std::vector<std::vector<SafetensorsEntry>> shards(1);
  uint64_t filled = 0;
  for (SafetensorsEntry& entry : entries) {
    const uint64_t bytes = entry.bytes();
    if (!shards.back().empty() && bytes > max_bytes - std::min(filled, max_bytes)) {
      shards.emplace_back();
      filled = 0;
    }
    filled += bytes;
    shards.back().push_back(std::move(entry));
  }
  return shards;
}

std::string file_name(size_t shard, size_t shards) {
  return shards == 1 ? "model.safetensors"
                     : fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shards);
}

}  // namespace

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
    shards_.push_back(std::make_unique<SafetensorsWriter>(folder / file_name(i, shards.size()),
                                                          std::move(shards[i]), metadata));
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
  nlohmann::ordered_json map = nlohmann::ordered_json::object();
  auto& object = map.get_ref<nlohmann::ordered_json::object_t&>();
  for (const auto& [name, shard] : shard_of_) {
    object.push_back({name, file_name(shard, shards_.size())});
  }
  const nlohmann::ordered_json index = {{"metadata", {{"total_size", bytes_}}},
                                        {"weight_map", map}};
  write_file_atomically(folder_ / "model.safetensors.index.json", index.dump(2) + "\n");
}

}  // namespace fp8train
