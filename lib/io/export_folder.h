#pragma once
// A model folder or checkpoint as a folder for other programs: its weights in another type, in
// shards, with what belongs to it.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "io/hf_folder.h"
#include "numeric/dtype.h"

namespace fp8train {

struct ExportOptions {
  DType dtype = DType::f32;  ///< fp32, bf16 or fp16
  uint64_t max_shard_bytes = HfFolderOptions{}.max_shard_bytes;
};

/// Files of tokenizers and generation settings that were copied, and notes: one sentence each.
struct ExportReport {
  uint64_t tensors = 0;
  uint64_t bytes = 0;
  std::vector<std::string> copied;
  std::vector<std::string> notes;
};

/// Whether a folder has a config.json, weights or an index, also of an export that was interrupted.
bool holds_model_files(const std::filesystem::path& folder);

/// Writes `to` as write_hf_folder does, from the model folder or checkpoint `from`; values are
/// rounded to nearest, ties to even. Holds all weights in `dtype` in memory. Throws CheckpointError
/// for a folder that cannot be read, and for a weight that fp16 cannot hold.
ExportReport export_folder(const std::filesystem::path& from, const std::filesystem::path& to,
                           const ExportOptions& options);

}  // namespace fp8train
