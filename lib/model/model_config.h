#pragma once
// The shape of a decoder-only transformer, in Hugging Face terms, for every family: a family only
// sets the switches.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/lora_settings.h"
#include "model/rope_scaling.h"
#include "nn/mlp_kind.h"
#include "nn/moe_shape.h"

namespace fp8train {

enum class NormKind : uint8_t { rms_norm, layer_norm };
enum class PositionKind : uint8_t { rope, learned };

class ModelFamily;

/// Returns the family Llama (model/families/family.h).
const ModelFamily* default_family();

/// The largest shape that is accepted: larger than any known model, and small enough for products
/// of its extents to be counted in 64 bits.
struct ModelLimits {
  static constexpr int64_t vocabulary = 1 << 24;
  static constexpr int64_t hidden = 1 << 16;
  static constexpr int64_t intermediate = 1 << 20;
  static constexpr int64_t layers = 1024;
  static constexpr int64_t heads = 1024;
  static constexpr int64_t head_dim = 512;
  static constexpr int64_t positions = 1 << 24;
  static constexpr int64_t experts = 1024;
};

/// The facts, apart from sizes, that decide what a model computes. A family assigns and compares
/// all switches (ModelFamily), so that each default is the behaviour of families that do not know
/// the switch.
struct ModelSwitches {
  NormKind norm = NormKind::rms_norm;
  MlpKind mlp = MlpKind::swiglu;
  PositionKind positions = PositionKind::rope;
  bool qkv_bias = false;  ///< on the q, k, v projections
  bool attention_output_bias = false;
  bool mlp_bias = false;
  bool norm_bias = true;  ///< LayerNorm's additive term; RMSNorm has none
  bool qk_norm = false;   ///< RMSNorm over each head of q and k (Qwen3)

  bool operator==(const ModelSwitches&) const = default;
};

/// The shape of a model and its switches.
struct ModelConfig : ModelSwitches {
  const ModelFamily* family = default_family();  ///< never null
  int64_t vocab_size = 0;                        ///< 0: taken from the tokenizer
  int64_t hidden_size = 0;                       ///< C
  int64_t intermediate_size = 0;                 ///< F
  int64_t num_hidden_layers = 0;                 ///< L
  int64_t num_attention_heads = 0;               ///< H
  int64_t num_key_value_heads = 0;               ///< Hkv, divides H
  int64_t head_dim = 0;                          ///< D, even; need not be C / H
  int64_t max_position_embeddings = 0;
  float norm_eps = 1e-5F;
  double rope_theta = 10000.0;
  std::optional<RopeScaling> rope_scaling;
  int64_t sliding_window = 0;      ///< keys that a query sees in windowed layers; 0: all of them
  int64_t first_window_layer = 0;  ///< layers from here on are windowed
  bool tie_word_embeddings = false;
  float initializer_range = 0.02F;
  MoeShape moe;
  LoraSettings lora;
  std::vector<int64_t>
      dense_layers;           ///< blocks of a model with experts that have an Mlp, ascending
  int64_t bos_token_id = -1;  ///< -1: none
  int64_t eos_token_id = -1;

  /// Width of the fused q, k, v projection: (H + 2 Hkv) * D.
  int64_t qkv_width() const { return (num_attention_heads + 2 * num_key_value_heads) * head_dim; }
  /// Whether a block has experts.
  bool has_experts(int64_t block) const;

  bool operator==(const ModelConfig&) const = default;
};

/// Returns `config` with the fields that follow from others (num_key_value_heads, head_dim, for
/// GELU and where all blocks have experts intermediate_size, the width of experts from it, for YaRN
/// the original context); with experts the family is that as which the model is written. Throws
/// ConfigError naming the field when the shape is impossible or above ModelLimits.
ModelConfig completed(ModelConfig config);

/// Returns the tokens of the longest sequence that is computed as the model means it:
/// max_position_embeddings, or its sliding window if that is shorter, since attention here always
/// sees all keys.
int64_t longest_sequence(const ModelConfig& config);

/// Returns why longer sequences are refused, as in "the model's max_position_embeddings 2048".
std::string longest_sequence_reason(const ModelConfig& config);

/// Whether two models differ in nothing but the family that names them.
bool same_computation(const ModelConfig& a, const ModelConfig& b);

/// Returns the number of parameters, a tied head counted once, adapters included. `config` is
/// completed.
int64_t parameter_count(const ModelConfig& config);

/// Returns the FLOPs of one training token: 6 per GEMM weight, plus causal attention at
/// `seq_length` (half of the square).
double flops_per_token(const ModelConfig& config, int64_t seq_length);

}  // namespace fp8train
