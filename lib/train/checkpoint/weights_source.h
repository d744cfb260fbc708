#pragma once
// Reads parameters, or ranks' parts of them, from the tensors of a model folder.

#include <cstdint>
#include <string>
#include <vector>

#include "engine/state_tensors.h"
#include "io/safetensors/tensor_source.h"
#include "model/hf_names.h"
#include "train/checkpoint/weights.h"

namespace fp8train {

/// Weights in a model folder.
struct WeightsSource {
  const TensorSource& tensors;
  const ModelConfig& config;
  MissingTokens missing = MissingTokens::refuse;

  /// Returns `count` values of a rank's part of a parameter from `first` on.
  std::vector<float> read(const std::string& parameter, const Sharding& part, int64_t first,
                          int64_t count) const;
  void read_piece(const HfPiece& piece, bool adds_rows, const Sharding& part,
                  const std::vector<StateBox>& boxes, std::vector<float>& values) const;
};

}  // namespace fp8train
