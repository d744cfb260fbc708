#pragma once
// The GGUF format, version 3 (ggml-org/ggml: docs/gguf.md): header, keys and values, names and
// shapes, then the bytes of tensors at multiples of 32. Little-endian, written tensor by tensor.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/atomic_file.h"
#include "model/families/config_value.h"
#include "numeric/dtype.h"

namespace fp8train {

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

}  // namespace fp8train
