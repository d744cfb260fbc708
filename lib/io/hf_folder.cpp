#include "io/hf_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/error.h"
#include "io/hf_config.h"

namespace fp8train {
namespace {

using Shard = std::vector<TensorBytes>;

/// Fills shards up to `max_bytes`; a larger tensor has a shard of its own.
std::vector<Shard> split(std::vector<TensorBytes> tensors, uint64_t max_bytes) {
  std::sort(tensors.begin(), tensors.end(),
            [](const TensorBytes& a, const TensorBytes& b) { return a.name < b.name; });
  std::vector<Shard> shards(1);
  uint64_t filled = 0;
  for (TensorBytes& tensor : tensors) {
    const uint64_t bytes = tensor.bytes();
    if (!shards.back().empty() && bytes > max_bytes - std::min(filled, max_bytes)) {
      shards.emplace_back();
      filled = 0;
    }
    filled += bytes;
    shards.back().push_back(std::move(tensor));
  }
  return shards;
}

void write_shards(const std::filesystem::path& folder, const std::vector<Shard>& shards) {
  nlohmann::ordered_json map;
  uint64_t total = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    write_safetensors(shards[i], {}, folder / name);
    for (const TensorBytes& tensor : shards[i]) {
      map[tensor.name] = name;
      total += tensor.bytes();
    }
  }
  const nlohmann::ordered_json index = {{"metadata", {{"total_size", total}}}, {"weight_map", map}};
  write_file_atomically(folder / "model.safetensors.index.json", index.dump(2) + "\n");
}

}  // namespace

void write_hf_folder(const std::filesystem::path& folder, const ModelConfig& config,
                     const std::vector<TensorBytes>& tensors, const HfFolderOptions& options) {
  const DType dtype = tensors.empty() ? DType::f32 : tensors.front().dtype;
  const std::string config_json = write_hf_config(config, dtype, options.eos_token_ids);
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  if (failure) {
    throw DeviceError(fmt::format("cannot create {}: {}", folder.string(), failure.message()));
  }
  const std::vector<Shard> shards = split(tensors, options.max_shard_bytes);
  if (shards.size() == 1) {
    write_safetensors(shards.front(), {}, folder / "model.safetensors");
  } else {
    write_shards(folder, shards);
  }
  if (!options.tokenizer_json.empty()) {
    write_file_atomically(folder / "tokenizer.json", options.tokenizer_json);
  }
  write_file_atomically(folder / "config.json", config_json);
}

}  // namespace fp8train
