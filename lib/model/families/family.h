#pragma once
// A model family: everything particular to Llama, Mixtral, Qwen or GPT-2, in one class. Everything
// else in the program sees a ModelConfig. A new family is one file next to this one that defines a
// class of this interface, its function at the end of this header and its line in families().

#include <string>
#include <string_view>
#include <vector>

#include "model/families/config_fields.h"
#include "model/hf_names.h"
#include "model/model_config.h"

namespace fp8train {

/// A family of models: its fields in config.json, its switches and the names of its tensors.
class ModelFamily {
 public:
  virtual ~ModelFamily() = default;

  /// "qwen3": model.model_type in YAML, model_type in config.json.
  virtual std::string_view name() const = 0;

  /// "Qwen3ForCausalLM": its class in transformers, in "architectures" of config.json.
  virtual std::string_view architecture() const = 0;

  /// "Fp8trainLlama": the architecture in config.json for models that no class in transformers
  /// computes, which this family writes with fields of its own. Empty: it writes no such models.
  virtual std::string_view own_architecture() const { return {}; }

  /// Returns the switches of a model that is trained from scratch.
  virtual ModelSwitches switches() const = 0;

  /// Copies to `to` the switches that a config.json of the family contains; with `own` those in
  /// fields for own_architecture() too.
  virtual void copy_fields(const ModelSwitches& /*from*/, bool /*own*/,
                           ModelSwitches& /*to*/) const {}

  /// Makes `config`, which may be of another family, a model from scratch of this one; sizes stay.
  virtual void set_switches(ModelConfig& config) const;

  /// Reads the fields of a config.json into `config`, all but those that every family has
  /// (hf_fields.cpp). Appends to `notes` a sentence for each field that it ignores. Throws
  /// CheckpointError for missing and contradictory fields, and for features that change the
  /// computation and are not implemented.
  virtual void read(const ConfigFields& fields, ModelConfig& config,
                    std::vector<std::string>& notes) const = 0;

  /// Whether the family's class in transformers computes exactly this model.
  bool is_standard(const ModelConfig& config) const {
    return has_switches(config, false) && is_standard_shape(config) &&
           (config.moe.experts > 0 ? computes_experts(config) : !has_experts());
  }

  /// Whether the family can write it as its own architecture.
  bool is_own(const ModelConfig& config) const {
    return !own_architecture().empty() && has_switches(config, true) &&
           config.sliding_window == 0 && has_experts() == (config.moe.experts > 0);
  }

  /// Whether its models have experts.
  virtual bool has_experts() const { return false; }

  /// Returns a sentence about what the family's class in transformers computes differently, or
  /// nothing.
  virtual std::string transformers_note(const ModelConfig& /*config*/) const { return {}; }

  /// Appends the fields that read() reads; with `own` those for own_architecture() too.
  virtual void write(const ModelConfig& config, bool own, ConfigObject& out) const = 0;

  /// Returns the tensors of a parameter in a model folder; see hf_pieces().
  virtual std::vector<HfPiece> pieces(const ModelConfig& config,
                                      const ParameterName& parameter) const = 0;

  /// Returns the modules that have adapters where model.lora.targets is not set: those of peft
  /// (src/peft/utils/constants.py).
  virtual std::vector<std::string> lora_targets() const { return {"q_proj", "v_proj"}; }

  /// Whether the tensor is a buffer that older versions of transformers saved, and that follows
  /// from the configuration.
  virtual bool is_buffer(std::string_view /*tensor*/) const { return false; }

  /// Returns llama.cpp's name of the architecture that computes this model, such as "llama", for
  /// which pieces() have names (ggml-org/llama.cpp: gguf-py/gguf/constants.py); empty: it has none.
  virtual std::string_view gguf_architecture(const ModelConfig& /*config*/) const { return {}; }

  /// Gives `config` the biases that the architecture there cannot do without: those that the model
  /// lacks are written as zeros.
  virtual void add_gguf_biases(ModelConfig& /*config*/) const {}

  /// Whether RoPE is applied there to neighbouring elements of a head, (2j, 2j + 1), and not to (j,
  /// j + D / 2): rows of q and k are written in that order.
  virtual bool gguf_has_neighbour_rope() const { return false; }

  /// Appends the sizes of the model under the keys of a GGUF file, without the architecture before
  /// them ("attention.head_count"); whole numbers become uint32, others float32. Throws
  /// CheckpointError for a RoPE that llama.cpp does not compute.
  virtual void write_gguf(const ModelConfig& /*config*/, ConfigObject& /*out*/) const {}

  /// Returns the standard deviation of the initial weights of the projections into the residual
  /// stream.
  virtual float residual_init_std(const ModelConfig& config) const {
    return config.initializer_range;
  }

 protected:
  /// Whether the family's class in transformers computes a model of these heads and windows.
  virtual bool is_standard_shape(const ModelConfig& /*config*/) const { return true; }

  /// Whether it computes experts as this model, which has some, does.
  virtual bool computes_experts(const ModelConfig& /*config*/) const { return false; }

 private:
  /// Whether the switches are the family's, but for those that it writes.
  bool has_switches(const ModelConfig& config, bool own) const;
};

/// A tensor of a block in a model folder: rows of the parameters of one module.
struct BlockTensor {
  std::string_view module;    ///< "attention.qkv"
  std::string_view hf, gguf;  ///< the part of the name between block and leaf
  int64_t rows = 0;
  int64_t begin = 0;
  int64_t rope_heads = 0;  ///< as in HfPiece
};

/// Returns the pieces of a parameter of a block from `tensors`, which has an entry for it. Names
/// begin with `blocks`, as in "model.layers".
std::vector<HfPiece> block_pieces(const std::vector<BlockTensor>& tensors, std::string_view blocks,
                                  const ParameterName& parameter);

/// Returns all families; the first one is default_family(). If several compute the same model, the
/// earlier one names it.
const std::vector<const ModelFamily*>& families();

/// Returns null if no family has this name.
const ModelFamily* find_family(std::string_view name);

const ModelFamily& llama_family();
const ModelFamily& mistral_family();
const ModelFamily& qwen2_family();
const ModelFamily& qwen3_family();
const ModelFamily& gpt2_family();
const ModelFamily& mixtral_family();
const ModelFamily& qwen3_moe_family();
const ModelFamily& dots1_family();

}  // namespace fp8train
