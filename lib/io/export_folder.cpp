#include "io/export_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "base/atomic_file.h"
#include "base/error.h"
#include "io/hf_config.h"
#include "io/hf_folder.h"
#include "io/tensor_source.h"
#include "numeric/bulk.h"

namespace fp8train {
namespace {

namespace fs = std::filesystem;

/// What transformers reads next to the weights. Notes of this program's checkpoints stay behind.
constexpr const char* kCompanions[] = {"tokenizer.json",
                                       "tokenizer_config.json",
                                       "special_tokens_map.json",
                                       "added_tokens.json",
                                       "vocab.json",
                                       "merges.txt",
                                       "tokenizer.model",
                                       "chat_template.jinja",
                                       "chat_template.json",
                                       "generation_config.json"};

std::vector<std::byte> encoded(const std::vector<float>& values, DType dtype,
                               const std::string& name) {
  std::vector<std::byte> bytes(values.size() * size_of(dtype));
  if (dtype == DType::f32) {
    std::copy(values.begin(), values.end(), reinterpret_cast<float*>(bytes.data()));
  } else if (dtype == DType::bf16) {
    encode(values.data(), 1.0F, reinterpret_cast<bf16*>(bytes.data()), values.size());
  } else {
    constexpr float kLimit = 65520.0F;  // from here on fp16 rounds to infinity
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::abs(values[i]) >= kLimit) {
        throw CheckpointError(
            fmt::format("{} element {} is {}, which fp16 cannot hold; export bf16 or fp32", name, i,
                        values[i]));
      }
    }
    encode(values.data(), 1.0F, reinterpret_cast<f16*>(bytes.data()), values.size());
  }
  return bytes;
}

void copy_file_whole(const fs::path& from, const fs::path& to) {
  write_file_atomically(to, read_text_file(from, std::numeric_limits<size_t>::max()));
}

}  // namespace

bool holds_model_files(const fs::path& folder) {
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename().string();
    if (name == "config.json" ||
        (name.starts_with("model") && name.find(".safetensors") != std::string::npos)) {
      return true;
    }
  }
  return false;
}

ExportReport export_folder(const fs::path& from, const fs::path& to, const ExportOptions& options) {
  const HfConfig config = read_hf_config(from);
  const TensorSource source(from);
  ExportReport report;
  report.notes = config.notes;
  std::vector<std::vector<std::byte>> memory;
  std::vector<TensorBytes> tensors;
  for (const std::string& name : source.names()) {
    const std::vector<int64_t>& shape = source.find(name)->shape;
    memory.push_back(encoded(source.read_f32(name, shape), options.dtype, name));
    tensors.push_back({name, options.dtype, shape, memory.back().data()});
    report.bytes += memory.back().size();
  }
  report.tensors = tensors.size();
  std::error_code failure;  // of which write_hf_folder will tell
  fs::create_directories(to, failure);
  for (const char* name : kCompanions) {
    if (fs::is_regular_file(from / name)) {
      copy_file_whole(from / name, to / name);
      report.copied.emplace_back(name);
    }
  }
  HfFolderOptions folder;
  folder.max_shard_bytes = options.max_shard_bytes;
  folder.eos_token_ids = config.eos_token_ids;
  write_hf_folder(to, config.model, tensors, folder);
  return report;
}

}  // namespace fp8train
