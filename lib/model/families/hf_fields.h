#pragma once
// A whole config.json of a model folder, through its family. A field that would change the
// mathematics and is not implemented is refused by name; fields that matter to other programs only
// are reported.

#include <cstdint>
#include <string>
#include <vector>

#include "model/families/config_value.h"
#include "model/model_config.h"
#include "numeric/dtype.h"

namespace fp8train {

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

}  // namespace fp8train
