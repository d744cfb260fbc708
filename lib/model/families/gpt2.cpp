// GPT-2 (huggingface/transformers: src/transformers/models/gpt2): LayerNorm, GELU, learned
// positions, tied embeddings, linear weights stored transposed.

#include <fmt/format.h>

#include <cmath>

#include "model/families/family.h"
#include "model/families/hf_fields.h"

namespace fp8train {
namespace {

bool has_all_biases(const ModelConfig& config) {
  return config.qkv_bias && config.attention_output_bias && config.mlp_bias && config.norm_bias;
}

class Gpt2 : public ModelFamily {
 public:
  std::string_view name() const override { return "gpt2"; }
  std::string_view architecture() const override { return "GPT2LMHeadModel"; }
  std::string_view own_architecture() const override { return "Fp8trainGpt2"; }
  ModelSwitches switches() const override {
    return {.norm = NormKind::layer_norm,
            .mlp = MlpKind::gelu,
            .positions = PositionKind::learned,
            .qkv_bias = true,
            .attention_output_bias = true,
            .mlp_bias = true};
  }
  void set_switches(ModelConfig& config) const override {
    ModelFamily::set_switches(config);
    config.tie_word_embeddings = true;
  }
  void copy_fields(const ModelSwitches& from, bool own, ModelSwitches& to) const override;
  void read(const ConfigFields& fields, ModelConfig& config,
            std::vector<std::string>& notes) const override;
  void write(const ModelConfig& config, bool own, ConfigObject& out) const override;
  std::vector<HfPiece> pieces(const ModelConfig& config,
                              const ParameterName& parameter) const override;
  bool is_buffer(std::string_view tensor) const override {
    return tensor.ends_with(".attn.bias") || tensor.ends_with(".attn.masked_bias");
  }
  std::string transformers_note(const ModelConfig& config) const override {
    return has_all_biases(config)
               ? ""
               : "transformers' GPT-2 has biases that this model lacks; transformers reports them "
                 "as missing and sets them to zero";
  }

  std::vector<std::string> lora_targets() const override { return {"c_attn"}; }
  std::string_view gguf_architecture(const ModelConfig& config) const override {
    return is_standard(config) ? "gpt2" : "";
  }
  void add_gguf_biases(ModelConfig& config) const override {
    config.qkv_bias = true;
    config.attention_output_bias = true;
    config.mlp_bias = true;
    config.norm_bias = true;
  }
  void write_gguf(const ModelConfig& config, ConfigObject& out) const override;

  /// The deviation is scaled by 1 / sqrt(2 L) (Radford et al. 2019, section 2.3).
  float residual_init_std(const ModelConfig& config) const override {
    return config.initializer_range /
           std::sqrt(2.0F * static_cast<float>(config.num_hidden_layers));
  }

 protected:
  bool is_standard_shape(const ModelConfig& config) const override {
    return config.sliding_window == 0 && config.num_key_value_heads == config.num_attention_heads &&
           config.head_dim * config.num_attention_heads == config.hidden_size;
  }
};

/// A model without a bias is GPT-2 with that bias at zero: other programs read a missing tensor as
/// zeros.
void Gpt2::copy_fields(const ModelSwitches& from, bool own, ModelSwitches& to) const {
  to.qkv_bias = from.qkv_bias;
  to.attention_output_bias = from.attention_output_bias;
  to.mlp_bias = from.mlp_bias;
  to.norm_bias = from.norm_bias;
  to.qk_norm = own && from.qk_norm;
}

void refuse_unknown(const ConfigFields& fields) {
  const std::string activation = fields.text("activation_function", "gelu_new");
  if (activation != "gelu_new" && activation != "gelu_pytorch_tanh") {
    fields.fail(fmt::format(
        "activation_function '{}' is not implemented for GPT-2; known: gelu_new", activation));
  }
  if (!fields.flag("scale_attn_weights", true) ||
      fields.flag("scale_attn_by_inverse_layer_idx", false)) {
    fields.fail("attention scales other than 1/sqrt(head_dim) are not implemented");
  }
  if (fields.flag("add_cross_attention", false)) {
    fields.fail("cross-attention is not implemented");
  }
}

void Gpt2::read(const ConfigFields& fields, ModelConfig& config,
                std::vector<std::string>& /*notes*/) const {
  set_switches(config);
  config.vocab_size = fields.extent("vocab_size");
  config.hidden_size = fields.extent("n_embd");
  config.num_hidden_layers = fields.extent("n_layer");
  config.num_attention_heads = fields.extent("n_head");
  config.num_key_value_heads = fields.extent("num_key_value_heads", config.num_attention_heads);
  config.qk_norm = fields.flag("qk_norm", false);
  config.intermediate_size = fields.extent("n_inner", 4 * config.hidden_size);
  config.max_position_embeddings = fields.extent("n_positions");
  if (!fields.has("head_dim") && config.hidden_size % config.num_attention_heads != 0) {
    fields.fail(fmt::format("n_embd {} is not a multiple of n_head {}", config.hidden_size,
                            config.num_attention_heads));
  }
  config.head_dim = fields.extent("head_dim", config.hidden_size / config.num_attention_heads);
  refuse_unknown(fields);
  config.norm_eps = static_cast<float>(fields.positive("layer_norm_epsilon", 1e-5));
  config.qkv_bias = fields.flag("qkv_bias", true);
  config.attention_output_bias = fields.flag("attention_output_bias", true);
  config.mlp_bias = fields.flag("mlp_bias", true);
  config.norm_bias = fields.flag("norm_bias", true);
  config.tie_word_embeddings = fields.flag("tie_word_embeddings", true);
}

void Gpt2::write(const ModelConfig& config, bool own, ConfigObject& out) const {
  if (own) {
    set(out, "num_key_value_heads", config.num_key_value_heads);
    set(out, "head_dim", config.head_dim);
    set(out, "qk_norm", config.qk_norm);
  }
  set(out, "vocab_size", config.vocab_size);
  set(out, "n_embd", config.hidden_size);
  set(out, "n_inner", config.intermediate_size);
  set(out, "n_layer", config.num_hidden_layers);
  set(out, "n_head", config.num_attention_heads);
  set(out, "n_positions", config.max_position_embeddings);
  set(out, "n_ctx", config.max_position_embeddings);
  set(out, "activation_function", "gelu_new");
  set(out, "layer_norm_epsilon", decimal_of(config.norm_eps));
  // These fields are our own, and are written only if a bias is missing.
  const std::pair<const char*, bool> biases[] = {
      {"qkv_bias", config.qkv_bias},
      {"attention_output_bias", config.attention_output_bias},
      {"mlp_bias", config.mlp_bias},
      {"norm_bias", config.norm_bias}};
  for (const auto& [name, present] : biases) {
    if (!present) {
      set(out, name, false);
    }
  }
  for (const char* dropout : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) {
    set(out, dropout, 0.0);
  }
}

void Gpt2::write_gguf(const ModelConfig& config, ConfigObject& out) const {
  set(out, "vocab_size", config.vocab_size);
  set(out, "context_length", config.max_position_embeddings);
  set(out, "embedding_length", config.hidden_size);
  set(out, "block_count", config.num_hidden_layers);
  set(out, "feed_forward_length", config.intermediate_size);
  set(out, "attention.head_count", config.num_attention_heads);
  set(out, "attention.layer_norm_epsilon", decimal_of(config.norm_eps));
}

std::vector<HfPiece> gpt2_outer_pieces(const ModelConfig& config, const ParameterName& parameter) {
  if (parameter.module == "embedding") {
    return {{"transformer.wte.weight", 0, config.vocab_size, false, "token_embd.weight"}};
  }
  if (parameter.module == "positions") {
    return {{.name = "transformer.wpe.weight",
             .rows = config.max_position_embeddings,
             .gguf = "position_embd.weight",
             .gguf_is_f32 = true}};
  }
  if (parameter.module == "head") {
    return {{"lm_head.weight", 0, config.vocab_size, false, "output.weight"}};
  }
  return {{"transformer.ln_f." + parameter.leaf, 0, config.hidden_size, false,
           "output_norm." + parameter.leaf}};
}

std::vector<HfPiece> Gpt2::pieces(const ModelConfig& config, const ParameterName& parameter) const {
  if (parameter.block.empty()) {
    return gpt2_outer_pieces(config, parameter);
  }
  const int64_t width = config.hidden_size;
  std::vector<HfPiece> pieces =
      block_pieces({{"attention_norm", "ln_1", "attn_norm", width},
                    {"mlp_norm", "ln_2", "ffn_norm", width},
                    {"attention.q_norm", "attn.q_norm", "attn_q_norm", config.head_dim},
                    {"attention.k_norm", "attn.k_norm", "attn_k_norm", config.head_dim},
                    {"attention.qkv", "attn.c_attn", "attn_qkv", config.qkv_width()},
                    {"attention.output", "attn.c_proj", "attn_output", width},
                    {"mlp.up", "mlp.c_fc", "ffn_up", config.intermediate_size},
                    {"mlp.down", "mlp.c_proj", "ffn_down", width}},
                   "transformer.h", parameter);
  pieces.front().transposed = parameter.leaf == "weight" && !parameter.module.ends_with("norm");
  return pieces;
}

}  // namespace

const ModelFamily& gpt2_family() {
  static const Gpt2 kFamily;
  return kFamily;
}

}  // namespace fp8train
