#pragma once
// A model folder whose tensors have been compared with its config.json: each tensor of the model
// occurs once and has its shape, and there is no other. Exports read from it.

#include <cstdint>
#include <filesystem>
#include <vector>

#include "io/safetensors/tensor_source.h"
#include "model/families/hf_fields.h"
#include "model/hf_names.h"

namespace fp8train {

/// A model folder that is open for reading.
struct ModelSource {
  std::filesystem::path folder;
  HfConfig config;
  TensorSource source;               ///< the tensors of the model alone, by the names in `tensors`
  std::vector<ModelTensor> tensors;  ///< in order of the model's parameters

  /// Returns the fp32 values of a tensor, as the folder has them. Throws as TensorSource::read_f32.
  std::vector<float> read(const ModelTensor& tensor) const {
    return source.read_f32(tensor.piece.name, tensor.shape);
  }
  /// Returns the same values with outputs as rows; `neighbour_rope`: the rows of q and k in pairs
  /// of neighbours.
  std::vector<float> read_rows(const ModelTensor& tensor, bool neighbour_rope) const;
};

/// Opens a model folder and reads its headers only. Throws CheckpointError, which names tensors
/// that are missing, unexpected or of another shape, and as read_hf_config and TensorSource do.
ModelSource open_model_source(const std::filesystem::path& folder);

// Orders of the rows of weights in files: which rows of q and k RoPE rotates together, and matrices
// stored as [in, out].

/// Returns the rows of `weight` ([heads * head_dim, any]) moved from half-split pairs (j, j +
/// head_dim / 2) to pairs of neighbours (2j, 2j + 1), head by head (llama.cpp's converter calls it
/// permute). Throws InternalError if the sizes do not fit.
std::vector<float> neighbour_rope_rows(const std::vector<float>& weight, int64_t heads,
                                       int64_t head_dim);

/// Returns a matrix [rows, columns] as [columns, rows].
std::vector<float> transposed(const std::vector<float>& values, int64_t rows, int64_t columns);

}  // namespace fp8train
