#pragma once
// Checks that a checkpoint belongs to the run that resumes from it, and that its state.json is
// plausible.

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "io/checkpoint/checkpoint.h"
#include "model/decoder.h"
#include "ops/optimizer/optimizer.h"
#include "train/checkpoint/training_state.h"
#include "train/session.h"

namespace fp8train {

/// The name of a run in its manifests: its seed and its data.
inline std::string run_id(uint64_t seed, const std::string& data_fingerprint) {
  return std::to_string(seed) + "-" + data_fingerprint;
}

/// The content of a state.json that a run continues with.
struct SavedRun {
  TrainingState run;            ///< is_scheduled is not read
  ops::StepControl control;     ///< the members that a step takes from the one before
  int64_t tokens_per_step = 0;  ///< 0: an earlier version did not write it
};

/// Throws CheckpointError where state.json names another run or step than the manifest, or holds a
/// value that no run has.
SavedRun read_state(const nlohmann::json& state, const CheckpointManifest& manifest,
                    const std::filesystem::path& folder);

/// The findings about a checkpoint that the run can resume from.
struct SameRun {
  std::vector<std::string> notes;  ///< data that cannot be compared, or what has changed and is
                                   ///< accepted (checkpoint.changed_data, checkpoint.changed_plan)
  bool changed_plan = false;       ///< saved under another plan: moments are to be converted
  bool begins_stage = false;       ///< saved at the end of the stage before: scaling begins anew
};

/// The checkpoint is whole, but belongs to a run with other settings.
class OtherRunError : public CheckpointError {
  using CheckpointError::CheckpointError;
};

/// Compares model, settings and data with those of the checkpoint. Throws one OtherRunError that
/// names all differences that are not accepted, and CheckpointError where a file is damaged.
SameRun check_same_run(const nlohmann::json& state, const Session& session, Decoder& model,
                       const std::filesystem::path& folder);

/// Returns the keys of the optimizer and of the schedule with their values, for state.json.
nlohmann::ordered_json rate_settings(const Settings& settings);
/// Returns "optimizer.lr: 0.001 -> 0.0005" for each of them that differs from those of a
/// state.json, as changed_settings() does; none for an earlier version, which did not write them.
std::vector<std::string> changed_rate_settings(const nlohmann::json& state,
                                               const Settings& settings);

}  // namespace fp8train
