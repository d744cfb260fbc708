#pragma once
// A model as a GGUF file for llama.cpp: sizes, tokenizer and weights in one file. The families know
// llama.cpp's names for a model, its keys and its tensors (model/families/family.h).

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "io/model_source.h"

namespace fp8train {

// The GGUF format, version 3 (ggml-org/ggml: docs/gguf.md): header, keys and values, names and
// shapes, then the bytes of tensors at multiples of 32. Little-endian, written tensor by tensor.

/// Element types, by their numbers in the file (ggml: ggml_type).
enum class GgufType : uint32_t { f32 = 0, f16 = 1, q8_0 = 8, bf16 = 30 };

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

}  // namespace fp8train
