#pragma once
// Angles of the rotary embedding (Su et al., RoFormer, arXiv 2104.09864), with Llama 3's frequency
// scaling.

#include <vector>

#include "model/model_config.h"

namespace fp8train {

/// Frequency of each pair j < D / 2 in radians per position: theta^(-2 j / D), stretched as
/// rope_scaling says.
std::vector<double> rotary_frequencies(const ModelConfig& config);

}  // namespace fp8train
