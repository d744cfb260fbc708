#pragma once
// Weights of other programs' folders that are codes with scales: how config.json says that they are
// stored, which tensors of a file belong to a weight, and the values that its codes stand for.

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "io/safetensors/safetensors.h"
#include "tensor/tensor_format.h"

namespace fp8train {

/// How the weights of a folder are stored ("quantization_config").
struct WeightCodes {
  std::string method;  ///< quant_method: "fp8", "compressed-tensors"
  /// The block that shares a scale where the shape of the scales does not say it:
  /// weight_block_size, group_size, block_structure.
  ScaleBlock block = per::block_128x128;
};

/// Returns nothing for a config.json that has no quantization_config. Throws CheckpointError, which
/// begins with `where`, for a method whose codes are not read: only floating-point and 8-bit
/// integer codes are, with scales for tensors, rows, groups or blocks and without zero points.
std::optional<WeightCodes> read_weight_codes(const nlohmann::ordered_json& config,
                                             const std::string& where);

/// A tensor of one of several files.
struct TensorLocation {
  size_t file = 0;
  SafetensorsEntry entry;  ///< under its name in the source
};

/// A weight that is codes: [rows, columns] with a scale for each block.
struct EncodedWeight {
  TensorLocation codes, scales;
  std::optional<TensorLocation> above;  ///< of the tensor, above the blocks' scales
  bool above_divides = false;  ///< values = codes * (scale / above), else codes * (scale * above)
  DType code = DType::e4m3;
  int64_t rows = 0, columns = 0, height = 1, width = 1;
};

/// Whether the codes are in a format with scales of rows, where one scale of the tensor is that of
/// each row, or of blocks. A weight may be in several.
bool are_in(const EncodedWeight& weight, const TensorFormat& format);

/// Finds a tensor by its name; null: there is none.
using FindTensor = std::function<const TensorLocation*(const std::string&)>;

/// Whether the last part of a tensor's name is that of a scale or of a part of a weight, which a
/// model does not have: "weight_scale_inv", "input_scale".
bool is_part_of_codes(const std::string& name);

/// Returns the weight `name` ("...weight") if its codes are there, under its own name or as
/// "..._packed". Throws CheckpointError where scales are missing or do not fit.
std::optional<EncodedWeight> find_encoded_weight(const std::string& name, const WeightCodes& how,
                                                 const FindTensor& find, const std::string& where);

/// Returns the scales of an encoded weight in fp32, in row-major order, with the scale above them.
/// Throws CheckpointError, which names it, for one that is negative or not finite.
std::vector<float> read_scales(const EncodedWeight& weight,
                               const std::vector<SafetensorsFile>& files);

/// Returns values first .. first + count - 1 of a weight, row by row, with scales of read_scales().
std::vector<float> decode_weight(const EncodedWeight& weight, const std::vector<float>& scales,
                                 const std::vector<SafetensorsFile>& files, int64_t first,
                                 int64_t count);

}  // namespace fp8train
