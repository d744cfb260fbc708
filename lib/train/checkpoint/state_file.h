#pragma once
// Reading the state.json of a checkpoint. For source files of this folder only.

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/json_error.h"
#include "io/checkpoint/checkpoint.h"
#include "io/safetensors/adapters.h"
#include "io/strict_json.h"

namespace fp8train {

constexpr const char* kStateFile = "state.json";
constexpr const char* kModelIndex = "model.safetensors.index.json";

/// Whether a file of a checkpoint holds weights: the only one, or one of those of the index.
inline bool is_model_file(std::string_view name) {
  return (name.starts_with("model") && name.ends_with(".safetensors")) || name == kAdapterFile;
}

/// Returns use(the JSON of a checkpoint's state.json, its path). Throws CheckpointError that names
/// what the file lacks.
template <typename Use>
auto with_state(const std::filesystem::path& folder, const Use& use) {
  const std::string where = (folder / kStateFile).string();
  const std::string text = read_checkpoint_text(folder, kStateFile);
  const nlohmann::json state = detail::parse_strict_json(text, where);
  try {
    return use(state, where);
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError(fmt::format("{}: {}", where, plain_json_error(error)));
  }
}

}  // namespace fp8train
