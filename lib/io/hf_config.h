#pragma once
// Hugging Face config.json to ModelConfig and back, for LlamaForCausalLM and GPT2LMHeadModel
// (huggingface/transformers: src/transformers/models/{llama,gpt2}/configuration_*.py). What would
// change the mathematics and is not implemented is refused by name; what only matters to other
// programs is reported as a note.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "model/model_config.h"
#include "numeric/dtype.h"

namespace fp8train {

struct HfConfig {
  ModelConfig model;
  std::vector<int64_t> eos_token_ids;  ///< all of them; model.eos_token_id is the first
  std::vector<std::string> notes;      ///< fields that are read and ignored, one sentence each
};

/// Reads the text of a config.json; `where` begins each message. Both spellings of RoPE are read
/// (rope_theta with rope_scaling, and rope_parameters). Throws CheckpointError for malformed JSON,
/// missing or contradictory fields, other architectures, and features that are not implemented
/// (sliding window, rope types other than default and llama3, other activations, quantized
/// weights).
HfConfig parse_hf_config(std::string_view json, const std::string& where);

/// The same for `folder`/config.json.
HfConfig read_hf_config(const std::filesystem::path& folder);

/// The same fields from an object that need not name an architecture: without "architectures" and
/// "model_type" it is GPT-2 if it has n_embd, else Llama.
ModelConfig parse_model_fields(std::string_view json, const std::string& where);

/// Text of a config.json; `dtype` is that of the weights. transformers (4 and 5) reads it, unless
/// the model has no architecture there (qk_norm, q/k/v biases without an output bias, grouped
/// queries in GPT-2): then the architecture is Fp8trainLlama or Fp8trainGpt2, which transformers
/// refuses and read_hf_config takes.
std::string write_hf_config(const ModelConfig& config, DType dtype);

}  // namespace fp8train
