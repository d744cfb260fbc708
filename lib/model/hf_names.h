#pragma once
// How the program's parameters map to the tensors of a Hugging Face model folder: fused projections
// are several tensors there, and GPT-2 stores its linear weights transposed (Conv1D).

#include <cstdint>
#include <string>
#include <vector>

#include "model/model_config.h"

namespace fp8train {

/// Rows [begin, begin + rows) of the parameter are the named tensor; `transposed`: stored there as
/// [in, out].
struct HfPiece {
  std::string name;
  int64_t begin = 0;
  int64_t rows = 0;
  bool transposed = false;
};

/// "layers.3.mlp.up.weight": block "3", module "mlp.up", leaf "weight". Outside of the layers the
/// block is empty.
struct ParameterName {
  std::string block;
  std::string module;
  std::string leaf;
};

/// The pieces of a parameter, by its name in the ParameterStore ("layers.0.attention.qkv.weight").
/// Together they cover all used rows.
std::vector<HfPiece> hf_pieces(const ModelConfig& config, const std::string& parameter);

}  // namespace fp8train
