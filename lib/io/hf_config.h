#pragma once
// Text of a Hugging Face config.json to ModelConfig and back. The model families know the fields
// and their meaning (model/families/family.h).

#include <filesystem>
#include <string>
#include <string_view>

#include "model/families/hf_fields.h"

namespace fp8train {

inline constexpr const char* kGenerationFile = "generation_config.json";

/// Reads the text of a config.json; `where` begins each message. Throws CheckpointError for
/// malformed JSON and as read_hf_fields does.
HfConfig parse_hf_config(std::string_view json, const std::string& where);

/// Reads `folder`/config.json in the same way. A head that the folder has in addition to
/// tie_word_embeddings, with other values than the embedding, is the model's own: the flag is false
/// then, which a note says (transformers, PR 42612). Throws CheckpointError also when the file
/// cannot be read.
HfConfig read_hf_config(const std::filesystem::path& folder);

/// The fields of a config.json that do not belong to the model.
struct HfConfigExtras {
  /// HfConfig::fields of the folder that the model comes from; empty: none. Of these all stay that
  /// describe the model as it is now, in their spelling, and all that this program does not know;
  /// auto_map goes, since its code is not copied.
  ConfigObject original;
  ConfigObject quantization;  ///< "quantization_config"; empty: none
};

/// Returns the text of a config.json; `dtype` is that of the weights. transformers (4 and 5) reads
/// it, but for architectures of our own. Throws CheckpointError as write_hf_fields() does.
std::string write_hf_config(const ModelConfig& config, DType dtype,
                            const HfConfigExtras& extras = {});

/// Returns the tokens at which transformers ends a text of the folder's model: those of
/// generation_config.json, then others of `config`. Throws CheckpointError for malformed JSON.
std::vector<int64_t> read_end_tokens(const std::filesystem::path& folder, const HfConfig& config);

/// Returns a clause about a folder that people take for a model folder, but that lacks config.json
/// or model.safetensors, with what to do: a model in the Hub's cache (huggingface_hub,
/// models--NAME/snapshots/HASH), an adapter (peft, adapter_config.json), shards without their
/// index, weights under other names or in other formats. Empty where it is none of these.
std::string describe_other_folder(const std::filesystem::path& folder);

}  // namespace fp8train
