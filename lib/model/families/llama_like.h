#pragma once
// The part that Llama and its relatives have in common: RMSNorm, SwiGLU, rotary embeddings, grouped
// queries, and the names of their fields and tensors.

#include "model/families/family.h"

namespace fp8train {

class LlamaLike : public ModelFamily {
 public:
  ModelSwitches switches() const override { return {}; }
  void set_switches(ModelConfig& config) const override;
  void read(const ConfigFields& fields, ModelConfig& config,
            std::vector<std::string>& notes) const override;
  void write(const ModelConfig& config, bool own, ConfigObject& out) const override;
  std::vector<HfPiece> pieces(const ModelConfig& config,
                              const ParameterName& parameter) const override;
  bool is_buffer(std::string_view tensor) const override {
    return tensor.ends_with(".rotary_emb.inv_freq");
  }
  void write_gguf(const ModelConfig& config, ConfigObject& out) const override;

 protected:
  /// Defaults of transformers' configuration class for fields that config.json lacks. 0 means the
  /// number of query heads, and hidden_size / num_attention_heads.
  struct Defaults {
    int64_t max_position_embeddings = 2048;
    int64_t key_value_heads = 0;
    int64_t head_dim = 0;
    double norm_eps = 1e-6;
    double rope_theta = 10000.0;
  };

  virtual Defaults defaults() const { return {}; }
  /// Reads fields that only this family has, after set_switches().
  virtual void read_own(const ConfigFields& /*fields*/, ModelConfig& /*config*/,
                        std::vector<std::string>& /*notes*/) const {}
  /// Appends the fields that read_own() reads; with `own` those for own_architecture() too.
  virtual void write_own(const ModelConfig& /*config*/, bool /*own*/, ConfigObject& /*out*/) const {
  }

  /// Names of the tensors of experts, below "model.layers.0.".
  struct ExpertNames {
    std::string_view module = "mlp";
    std::string_view gate = "gate_proj", up = "up_proj", down = "down_proj";
  };
  virtual ExpertNames expert_names() const { return {}; }

 private:
  std::vector<HfPiece> moe_pieces(const ModelConfig& config, const ParameterName& parameter) const;
};

/// Returns `routing` with the sizes of `shape`.
MoeShape with_sizes_of(const MoeShape& shape, MoeShape routing);

/// The value of "sliding_window": null without windows.
ConfigObject window_of(const ModelConfig& config);

/// Returns layer_types, which is empty when absent. Throws CheckpointError unless it has one text
/// for each layer.
std::vector<std::string> layer_types(const ConfigFields& fields, const ModelConfig& config);

/// Reads use_sliding_window (absent: `used`), sliding_window, max_window_layers (absent: `first`)
/// and layer_types of Qwen2, Qwen3 and dots.llm1. Throws CheckpointError if windowed layers are not
/// the last ones.
void read_layer_windows(const ConfigFields& fields, ModelConfig& config, bool used = false,
                        int64_t first = 28);
/// Appends these fields but for layer_types, which follows from the others.
void write_layer_windows(const ModelConfig& config, ConfigObject& out);

}  // namespace fp8train
