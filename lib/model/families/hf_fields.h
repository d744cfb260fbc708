#pragma once
// A whole config.json of a model folder, through its family. A field that would change the
// mathematics and is not implemented is refused by name; fields that matter to other programs only
// are reported.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/families/config_fields.h"
#include "model/model_config.h"
#include "numeric/dtype.h"

namespace fp8train {

/// Appends the entry, or replaces the value of an entry with this key.
inline void set(ConfigObject& object, std::string_view key, ConfigObject value) {
  object[std::string(key)] = std::move(value);
}

struct HfConfig {
  ModelConfig model;
  std::vector<int64_t> eos_token_ids;  ///< all of them; model.eos_token_id is the first
  std::vector<std::string> notes;  ///< fields that are ignored or contradicted, one sentence each
  std::vector<std::string> training_notes;  ///< the same of what only trainings do
  std::vector<std::string> copying_notes;   ///< the same of what copies leave out
  ConfigObject fields;                      ///< the whole file
};

/// Reads a whole config.json. Throws CheckpointError for missing or contradictory fields, other
/// architectures, and features that are not implemented.
HfConfig read_hf_fields(const ConfigFields& fields);

/// Returns the fields of a config.json. `dtype` is that of the weights. The model is written as its
/// own family if transformers computes the model so, else as another family that does, else under
/// an architecture of our own, which transformers refuses and read_hf_fields takes. Throws
/// CheckpointError if there is none.
ConfigObject write_hf_fields(const ModelConfig& config, DType dtype);

/// Returns the family as which write_hf_fields() writes the model. Null: it cannot.
const ModelFamily* written_family(const ModelConfig& config);

/// Returns the family whose class in transformers computes the model, preferably its own. Null:
/// none does.
const ModelFamily* standard_family(const ModelConfig& config);

/// Reads rope_theta (absent: as it is) and the scaling into `config`, whose
/// max_position_embeddings is set. Throws
/// CheckpointError for contradictory spellings and types that are not implemented (longrope, RoPE
/// by layer type, partial rotary embeddings).
void read_rope(const ConfigFields& fields, ModelConfig& config, std::vector<std::string>& notes);

/// Appends the fields in both spellings.
void write_rope(const ModelConfig& config, ConfigObject& out);

/// Whether a GGUF file has the factors of RoPE as a tensor (rope_freqs.weight), as llama3 needs.
/// llama.cpp reads it for its architecture "llama" only.
bool has_gguf_rope_factors(const ModelConfig& config);

/// Writes RoPE as keys rope.scaling.* of a GGUF file; none for llama3, which has a tensor, and
/// dynamic, which changes nothing here. Throws CheckpointError for a YaRN that llama.cpp does not
/// compute.
void write_gguf_rope(const ModelConfig& config, ConfigObject& out);

}  // namespace fp8train
