#pragma once
// The matrices of a safetensors file, cast with the program's own quantizers into another file:
// codes and, next to them, the factors of the codes, under the names that programs for inference
// expect (docs/reference/formats.md). Works tensor by tensor: memory
// for the largest one is enough. Synchronous, on the cpu.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/export/quantize_matrix.h"
#include "io/safetensors/safetensors.h"
#include "io/safetensors/tensor_source.h"
#include "tensor/tensor_format.h"

namespace fp8train {

/// How the tensors of a file or folder are converted.
struct FileQuantization {
  TensorFormat format;  ///< as check_quantization accepts it
  uint64_t seed = 0;    ///< of stochastic rounding
  bool dequantize =
      false;  ///< write codes * scale in the type that was read, instead of codes and scales
  bool vectors = false;              ///< cast tensors of one dimension too, as one row
  std::vector<std::string> include;  ///< patterns as of the shell: none means all
  std::vector<std::string> exclude;
  /// fp32, bf16 or fp16: of floats that are not cast; none: they are copied as they are.
  std::optional<DType> others;
};

struct QuantizedEntry {
  std::string name;
  std::string dtype;  ///< of the input, in safetensors' spelling
  std::vector<int64_t> shape;
  CastQuality quality;
};

struct CopiedTensor {
  std::string name, reason;
  uint64_t not_finite = 0;  ///< of floats: values that are NaN or infinite
};

struct FileQuantizationReport {
  std::vector<QuantizedEntry> tensors;  ///< in order of the file
  std::vector<CopiedTensor> copied;     ///< copied as they are

  CastQuality total() const;
  /// A line for each tensor with values that are NaN or infinite.
  std::vector<std::string> not_finite() const;
};

/// Returns the blocks that may share a scale: all for which casts make codes.
std::vector<ScaleBlock> quantization_blocks();

/// Throws ConfigError where no cast makes such codes and scales (ops::why_not_cast()) or the block
/// is not one of quantization_blocks().
void check_quantization(const TensorFormat& format);

/// Returns "_scale_inv" for 1x128 and 128x128, else "_scale" (as DeepSeek-V3 and compressed-tensors
/// write them).
std::string_view scale_suffix(ScaleBlock block);

/// Whether a tensor is cast.
bool is_cast(const SafetensorsEntry& entry, const FileQuantization& how);

/// Returns the tensors that a cast of `source` writes: codes, scales, and those that are not cast.
/// Their offsets are not known yet.
std::vector<SafetensorsEntry> quantized_entries(const TensorSource& source,
                                                const FileQuantization& how);

/// Passes all of them to `write`, tensor by tensor. Throws CheckpointError for a tensor that cannot
/// be read, and with `others` for one that is not finite or that fp16 cannot hold.
FileQuantizationReport quantize_tensors(const TensorSource& source, const FileQuantization& how,
                                        const TensorSink& write);

/// Returns the note on the cast for the metadata of a file: JSON.
std::string quantization_note(const FileQuantization& how);

/// Casts every tensor of fp32, bf16 or fp16 with two dimensions or more, seen as a matrix [rows,
/// last extent], that the patterns leave; copies the others. Stochastic rounding draws for (seed,
/// the tensor's number in the order of the input's bytes, element). Throws ConfigError when nothing
/// is left to cast, CheckpointError when `from` cannot be read or names clash, DeviceError when
/// `to`, which is wholly there afterwards or unchanged, cannot be written.
FileQuantizationReport quantize_file(const std::filesystem::path& from,
                                     const std::filesystem::path& to, const FileQuantization& how);

}  // namespace fp8train
