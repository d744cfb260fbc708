#pragma once
// The start of a run: from a checkpoint, from the weights of a model folder, or from initial
// values.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "device/device.h"
#include "io/run_directory.h"
#include "train/engine.h"
#include "train/session.h"
#include "train/training_state.h"
#include "train/weights.h"

namespace fp8train {

struct RunStart {
  TrainingState state;
  std::optional<std::filesystem::path> checkpoint;  ///< the one that the run continues from
  std::string line;                                 ///< for the user; empty: nothing to say
  std::vector<std::string> warnings;
};

/// Optimizer steps that are done in the checkpoint that load_start() will load; 0: none.
/// Collective.
int64_t step_to_begin_at(const Session& session, const std::filesystem::path& checkpoints,
                         Communicator& comm);

/// Loads the weights, and all else of the engine's state where there is a checkpoint to go on from
/// (checkpoint.resume). Collective. Throws CheckpointError, and ConfigError where checkpoint.resume
/// is never and the run directory holds checkpoints.
RunStart load_start(const Session& session, Engine& engine, Device& device,
                    const RunDirectory& directory, Communicator& comm);

/// append where model.resize_vocabulary is set.
MissingTokens missing_tokens(const ModelSettings& model);

}  // namespace fp8train
