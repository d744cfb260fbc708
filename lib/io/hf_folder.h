#pragma once
// Writes a Hugging Face model folder: config.json, model.safetensors (or shards with an index), and
// this program's tokenizer.json.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "io/safetensors/safetensors.h"
#include "model/model_config.h"

namespace fp8train {

struct HfFolderOptions {
  uint64_t max_shard_bytes = 5'000'000'000;
  std::string tokenizer_json;  ///< text of tokenizer.json; empty: none is written
};

/// Creates `folder` and writes it; `tensors` carry Hugging Face names and shapes, and their memory
/// stays the caller's. Shards are filled in name order. Throws CheckpointError for a model without
/// such an architecture and for a name that appears twice, DeviceError when the disk refuses. Each
/// file is whole or absent; config.json is written last.
void write_hf_folder(const std::filesystem::path& folder, const ModelConfig& config,
                     const std::vector<TensorBytes>& tensors, const HfFolderOptions& options = {});

}  // namespace fp8train
