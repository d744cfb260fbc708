#pragma once
// The weights with which a run begins. Those of the base model of adapters do not change: no
// checkpoint has them, but the hash of their files, and a run continues only with these. A base
// without a folder is drawn again.

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/engine.h"
#include "io/safetensors/tensor_source.h"
#include "train/checkpoint/weights.h"
#include "train/session.h"

namespace fp8train {

/// Sets this rank's part of a frozen weight that is codes, and their scales. Codes in
/// LoraSettings::base are copied as they are; other weights are cast.
void load_codes(Device& device, const ModelConfig& config, const TensorSource& source,
                const Parameter& weight, const Parameter& scales);

/// Returns append if model.resize_vocabulary is set, else refuse.
MissingTokens missing_tokens(const ModelSettings& model);

/// Sets all weights but adapters: those of model.from, or initial ones.
void load_base(Engine& engine, const Session& session, const Magnitudes& magnitudes = {});

/// Returns the hash of all files of the model that is adapted; empty: there is none, or it was
/// drawn.
std::string hash_of_base(const Session& session);

/// Compares it with that of state.json in a checkpoint. Throws OtherRunError.
void check_base(const nlohmann::json& state, const Session& session,
                const std::filesystem::path& folder);

}  // namespace fp8train
