#pragma once
// Adapters (LoRA; Hu et al., arXiv 2106.09685): of a linear layer y = x W^T the weight is frozen,
// and y += scale (x A^T) B^T is trained, A [r, K] and B [n, r]. Their names are those of peft
// (huggingface/peft: src/peft/tuners/lora): an adapter belongs to a module of transformers, which
// is some rows of a fused weight here.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/hf_names.h"
#include "model/lora_settings.h"
#include "model/model_config.h"
#include "precision/linear_plan.h"

namespace fp8train {

/// The end of the name of the scales of a weight that is codes: "layers.0.mlp.up" + this.
inline constexpr const char* kCodeScales = ".weight_scale";

/// The adapter of some rows of a weight.
struct LoraPiece {
  std::string name;    ///< "layers.0.attention.qkv.q_proj": of its parameters, with ".lora_A"
  std::string module;  ///< "model.layers.0.self_attn.q_proj", in transformers
  int64_t begin = 0, rows = 0;
  int64_t columns = 0;
  double token_share = 1.0;  ///< of its layer

  int64_t elements(int64_t rank) const { return rank * (rows + columns); }
};

/// Whether a parameter is an A or a B.
bool is_adapter(std::string_view parameter);

/// Returns the adapters of a layer, in the order of its rows; none outside of the blocks.
std::vector<LoraPiece> lora_pieces(const ModelConfig& config, const LinearSite& site);
/// Returns the adapters of all layers, in their order. Throws ConfigError for a target that matches
/// no layer.
std::vector<LoraPiece> lora_pieces(const ModelConfig& config);

/// Returns the tensor of a parameter of an adapter in peft's file:
/// "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight".
HfPiece lora_tensor(const ModelConfig& config, const std::string& parameter);

/// Returns the target_modules of peft's adapter_config.json: last parts of names where all modules
/// that end in them have adapters, else whole names.
std::vector<std::string> peft_targets(const ModelConfig& config);

}  // namespace fp8train
