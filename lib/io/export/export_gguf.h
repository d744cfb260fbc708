#pragma once
// A model as a GGUF file for llama.cpp: sizes, tokenizer and weights in one file. The families know
// llama.cpp's names for a model, its keys and its tensors (model/families/family.h).

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/atomic_file.h"
#include "io/model_source.h"
#include "model/families/config_value.h"
#include "numeric/dtype.h"

namespace fp8train {

// The GGUF format, version 3 (ggml-org/ggml: docs/gguf.md): header, keys and values, names and
// shapes, then the bytes of tensors at multiples of 32. Little-endian, written tensor by tensor.

/// Element types, by their numbers in the file (ggml: ggml_type).
enum class GgufType : uint32_t { f32 = 0, f16 = 1, q8_0 = 8, bf16 = 30 };

struct GgufTypeFacts {
  GgufType type;
  int64_t file_type;  ///< number of a file whose matrices have the type (llama.cpp: llama_ftype)
  std::optional<DType> dtype;  ///< type of an element; none: blocks of a row have a scale
  int64_t block;               ///< elements
  uint64_t block_bytes;
};
/// Returns the line of the table for a type.
const GgufTypeFacts& facts_of(GgufType type);

struct GgufTensor {
  std::string name;
  std::vector<int64_t> shape;  ///< row-major; the file has the last extent first
  GgufType type = GgufType::f32;

  /// Returns the bytes in the file. Throws InternalError if rows are not whole blocks.
  uint64_t bytes() const;
};

/// Writes a GGUF file: its keys, the list of tensors, then their bytes.
class GgufWriter {
 public:
  /// Values of `metadata`: true or false, whole numbers (uint32), numbers (float32), texts, and
  /// lists of whole numbers (int32), numbers (float32) or texts; an empty list is one of texts.
  /// Throws DeviceError when the disk refuses, InternalError for a whole number beyond 32 bits.
  GgufWriter(const std::filesystem::path& path, const ConfigObject& metadata,
             std::vector<GgufTensor> tensors);

  /// Writes the bytes of the next tensor, in the order of the constructor's.
  void write(const void* data);

  /// Gives the file its name once every tensor has been written. Throws InternalError before.
  void commit();

 private:
  void pad();

  AtomicFile file_;
  std::vector<GgufTensor> tensors_;
  size_t next_ = 0;
  uint64_t position_ = 0;  ///< bytes written
};

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
