#pragma once
// Reading the state.json of a checkpoint. For source files of this folder only.

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "io/checkpoint/checkpoint.h"

namespace fp8train {

constexpr const char* kStateFile = "state.json";

/// Returns use(the JSON of a checkpoint's state.json, its path). Throws CheckpointError that names
/// what the file lacks.
template <typename Use>
auto with_state(const std::filesystem::path& folder, const Use& use) {
  const std::string where = (folder / kStateFile).string();
  try {
    return use(nlohmann::json::parse(read_checkpoint_text(folder, kStateFile)), where);
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError(fmt::format("{}: {}", where, error.what()));
  }
}

}  // namespace fp8train
