#pragma once
// RoPE in a config.json, in both spellings: rope_theta with rope_scaling (transformers 4) and
// rope_parameters (5).

#include "model/families/config_value.h"
#include "model/model_config.h"

namespace fp8train {

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
