#pragma once
// Writes a Hugging Face model folder: config.json, and model.safetensors or shards with an index.

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/atomic_file.h"
#include "io/hf_config.h"
#include "io/safetensors/safetensors.h"
#include "model/model_config.h"

namespace fp8train::test {

/// `tensors` carry Hugging Face names and shapes.
inline void write_hf_folder(const std::filesystem::path& folder, const ModelConfig& config,
                            const std::vector<TensorBytes>& tensors,
                            uint64_t max_shard_bytes = 5'000'000'000) {
  create_folder(folder);
  std::vector<SafetensorsEntry> entries;
  for (const TensorBytes& tensor : tensors) {
    entries.push_back(safetensors_entry(tensor.name, tensor.dtype, tensor.shape));
  }
  ShardedWriter writer(folder, std::move(entries), {}, max_shard_bytes);
  for (const TensorBytes& tensor : tensors) {
    writer.write(tensor.name, tensor.data);
  }
  writer.commit();
  write_file_atomically(folder / "config.json", write_hf_config(config, tensors.front().dtype));
}

}  // namespace fp8train::test
