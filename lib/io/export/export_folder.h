#pragma once
// A model folder or checkpoint as a folder for other programs: its weights in another type, or cast
// with a scale for each tensor or block, in shards, with its configuration and tokenizer files.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "io/export/quantize_file.h"
#include "model/hf_names.h"
#include "numeric/dtype.h"

namespace fp8train {

struct ExportOptions {
  /// The type of tensors: fp32, bf16 or fp16. None: they stay as they are, which is for casts only.
  std::optional<DType> dtype = DType::f32;
  /// Casts the weights of linear layers in blocks; `dtype` then is that of the other tensors. Its
  /// patterns leave layers out; its `others`, `vectors` and `dequantize` have no effect.
  std::optional<FileQuantization> quantization;
  uint64_t max_shard_bytes = kMaxModelFileBytes;
};

/// The result of an export: the files of tokenizers and generation settings that were copied, and
/// notes of one sentence each, which begin with the file that they are about.
struct ExportReport {
  uint64_t tensors = 0;  ///< tensors of the model; scales do not count
  uint64_t bytes = 0;
  std::vector<std::string> copied;
  std::vector<std::string> notes;
  FileQuantizationReport quantization;  ///< casts; empty without
};

/// Whether a folder has a config.json, weights or an index, also of an export that was interrupted.
bool holds_model_files(const std::filesystem::path& folder);

/// Writes `to` as a model folder, from the model folder or checkpoint `from`, whose tensors are
/// compared with its config.json before anything is written; values are rounded to nearest, ties to
/// even. config.json comes last, with a quantization_config where weights are cast. Holds one
/// tensor in memory. Throws CheckpointError for a folder that cannot be read or that is not its
/// model, for a weight that is not finite or that fp16 cannot hold, and for a cast of a model that
/// stores weights transposed; ConfigError for a cast that no program reads; DeviceError when the
/// disk refuses.
ExportReport export_folder(const std::filesystem::path& from, const std::filesystem::path& to,
                           const ExportOptions& options);

}  // namespace fp8train
