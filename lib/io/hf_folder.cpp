#include "io/hf_folder.h"

#include <utility>

#include "base/atomic_file.h"
#include "io/hf_config.h"
#include "io/safetensors/sharded_writer.h"

namespace fp8train {

void write_hf_folder(const std::filesystem::path& folder, const ModelConfig& config,
                     const std::vector<TensorBytes>& tensors, const HfFolderOptions& options) {
  const DType dtype = tensors.empty() ? DType::f32 : tensors.front().dtype;
  const std::string config_json = write_hf_config(config, dtype);
  create_folder(folder);
  std::vector<SafetensorsEntry> entries;
  for (const TensorBytes& tensor : tensors) {
    entries.push_back(safetensors_entry(tensor.name, tensor.dtype, tensor.shape));
  }
  ShardedWriter writer(folder, std::move(entries), {}, options.max_shard_bytes);
  for (const TensorBytes& tensor : tensors) {
    writer.write(tensor.name, tensor.data);
  }
  writer.commit();
  if (!options.tokenizer_json.empty()) {
    write_file_atomically(folder / "tokenizer.json", options.tokenizer_json);
  }
  write_file_atomically(folder / "config.json", config_json);
}

}  // namespace fp8train
