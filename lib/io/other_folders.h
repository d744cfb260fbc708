#pragma once
// Folders that people take for a model folder of transformers, and what they are.

#include <filesystem>
#include <string>

namespace fp8train {

/// Returns a clause about a folder that lacks config.json or model.safetensors, with what to do: a
/// model in the Hub's cache (huggingface_hub, models--NAME/snapshots/HASH), an adapter (peft,
/// adapter_config.json), shards without their index, weights under other names or in other formats.
/// Empty where it is none of these.
std::string describe_other_folder(const std::filesystem::path& folder);

}  // namespace fp8train
