#pragma once
// Tensors of a model folder: model.safetensors, or shards and model.safetensors.index.json, written
// tensor by tensor so that they need not be in memory together.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "io/safetensors/safetensors.h"

namespace fp8train {

/// Returns model.safetensors.index.json for the file of each tensor, by name; `bytes`: of all.
std::string model_index(const std::map<std::string, std::string>& file_of, uint64_t bytes);

/// Takes the bytes of a tensor that was announced.
using TensorSink = std::function<void(const std::string& name, const void* data)>;

class ShardedWriter {
 public:
  /// Shards are filled in order of names up to `max_shard_bytes`; a larger tensor has one of its
  /// own. As for SafetensorsWriter, offsets of entries do not matter. Throws DeviceError when the
  /// disk refuses, CheckpointError for a name that appears twice.
  ShardedWriter(const std::filesystem::path& folder, std::vector<SafetensorsEntry> entries,
                const std::map<std::string, std::string>& metadata, uint64_t max_shard_bytes);

  /// Writes the bytes of a tensor, in any order. Throws as SafetensorsWriter::write().
  void write(const std::string& name, const void* data);

  /// Gives the files their names, the index last, once every tensor has been written. Throws
  /// InternalError before.
  void commit();

  uint64_t bytes() const { return bytes_; }

 private:
  std::filesystem::path folder_;
  uint64_t bytes_ = 0;  ///< of all tensors
  std::vector<std::unique_ptr<SafetensorsWriter>> shards_;
  std::map<std::string, size_t> shard_of_;
};

}  // namespace fp8train
