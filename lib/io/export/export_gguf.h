#pragma once
// A model as a GGUF file for llama.cpp: sizes, tokenizer and weights in one file. The families know
// llama.cpp's names for a model, its keys and its tensors (model/families/family.h).

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "io/export/gguf_writer.h"
#include "io/model_source.h"

namespace fp8train {

/// The result of an export to GGUF.
struct GgufReport {
  uint64_t tensors = 0;
  uint64_t bytes = 0;              ///< bytes of the tensors
  std::vector<std::string> notes;  ///< one sentence each
};

/// Writes matrices in `type`; vectors, norms and learned positions are fp32, and a matrix whose
/// rows Q8_0 cannot hold is fp16, as llama.cpp's converter does. Rows of q and k are reordered
/// where its RoPE wants that. Holds one tensor in memory. Throws CheckpointError for a model that
/// llama.cpp does not compute or that has fewer tokens than its tokenizer, DataError for a damaged
/// tokenizer, DeviceError when the disk refuses.
GgufReport export_gguf(const ModelSource& model, const std::filesystem::path& to, GgufType type);

/// Appends tokenizer.ggml.* and tokenizer.chat_template for the tokenizer in the model's folder,
/// and a note for each thing that a GGUF file cannot have. Throws as export_gguf().
void add_gguf_tokenizer(const ModelSource& model, ConfigObject& metadata,
                        std::vector<std::string>& notes);

}  // namespace fp8train
