#pragma once
// Angles of the rotary embedding (Su et al., RoFormer, arXiv 2104.09864), stretched as
// ModelConfig::rope_scaling says (huggingface/transformers:
// src/transformers/modeling_rope_utils.py; YaRN: Peng et al., arXiv 2309.00071, section 3).

#include <vector>

#include "model/model_config.h"

namespace fp8train {

/// Returns the frequency of each pair j < D / 2 in radians per position: theta^(-2 j / D),
/// stretched as rope_scaling says.
std::vector<double> rotary_frequencies(const ModelConfig& config);

/// Returns the factor of cosines and sines: 1 except for YaRN, which scales the logits of attention
/// in this way (arXiv 2309.00071, section 3.4).
double rotary_attention_factor(const ModelConfig& config);

}  // namespace fp8train
