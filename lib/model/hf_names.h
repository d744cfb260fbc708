#pragma once
// How the program's parameters map to the tensors of a Hugging Face model folder: fused projections
// are several tensors there, and GPT-2 stores its linear weights transposed (Conv1D).

#include <cstdint>
#include <string>
#include <vector>

#include "model/model_config.h"

namespace fp8train {

/// Rows [begin, begin + rows) of the parameter are the named tensor, which is stored as [in, out]
/// if it is `transposed`.
struct HfPiece {
  std::string name;
  int64_t begin = 0;
  int64_t rows = 0;
  bool transposed = false;
  std::string gguf;          ///< its name in a GGUF file of llama.cpp
  int64_t rope_heads = 0;    ///< number of heads whose rows RoPE rotates; 0: it does not
  bool gguf_is_f32 = false;  ///< a matrix that a GGUF file has in fp32 only
};

/// "layers.3.mlp.up.weight": block "3", module "mlp.up", leaf "weight". Outside of the layers the
/// block is empty.
struct ParameterName {
  std::string block;
  std::string module;
  std::string leaf;
};

/// Returns the pieces of a parameter, by its name in the ParameterStore
/// ("layers.0.attention.qkv.weight"). Together they cover all used rows.
std::vector<HfPiece> hf_pieces(const ModelConfig& config, const std::string& parameter);

/// Returns the shape of a piece in the folder; `columns` are those of the parameter.
std::vector<int64_t> hf_shape(const HfPiece& piece, bool is_vector, int64_t columns);

/// A tensor of a model folder.
struct ModelTensor {
  HfPiece piece;
  std::vector<int64_t> shape;  ///< in the folder
  bool is_linear = false;      ///< weight of a linear layer in a block
  std::string parameter;       ///< whose piece it is

  int64_t columns() const {
    return shape.size() == 1 ? 1 : piece.transposed ? shape.front() : shape.back();
  }
};

/// Returns all tensors of a model, in the order of its parameters. A tied head has none. Throws
/// ConfigError for an impossible shape (completed()).
std::vector<ModelTensor> model_tensors(const ModelConfig& config);

/// The largest file of weights, unless one tensor is larger: that of save_pretrained() in
/// transformers 4.
constexpr uint64_t kMaxModelFileBytes = 5'000'000'000;

/// Returns the file, counted from 0, of each tensor: files are filled in this order up to
/// `max_bytes`, and a larger tensor has one of its own.
std::vector<size_t> divide_into_files(const std::vector<uint64_t>& bytes, uint64_t max_bytes);
/// "model-00002-of-00007.safetensors", or "model.safetensors" where it is the only one.
std::string model_file_name(size_t file, size_t files);

/// Returns the fp32 tensors of a model by the files of a checkpoint, each in order of names. They
/// follow from the configuration alone. Of a model with adapters they are the adapters alone.
std::vector<std::vector<ModelTensor>> model_files(const ModelConfig& config,
                                                  uint64_t max_bytes = kMaxModelFileBytes);

/// Returns the name of the head's weight in the folder, which a tied head has too:
/// "lm_head.weight".
std::string hf_head_weight(const ModelConfig& config);

/// Whether a folder may hold such a tensor in addition, because it follows from the configuration:
/// buffers that older versions of transformers saved, and a tied head.
bool follows_from_config(const ModelConfig& config, const std::string& name);

}  // namespace fp8train
