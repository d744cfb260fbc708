#pragma once
// The start of a run: from a checkpoint, from the weights of a model folder, or from initial
// values.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "device/device.h"
#include "train/checkpoint/training_state.h"
#include "train/session.h"
#include "train/step/engine.h"
#include "train/step/weights.h"

namespace fp8train {

/// The checkpoint that a run goes on from, if there is one.
struct FoundStart {
  std::optional<std::filesystem::path> checkpoint;
  int64_t step = 0;                ///< optimizer steps that are done in it
  std::vector<std::string> notes;  ///< a line for each that is passed over, being of no use
};

/// As checkpoint.resume says, found and verified by the first rank. Collective. Throws
/// CheckpointError where all of the run's are damaged, and ConfigError where checkpoint.resume is
/// never and there are some under `checkpoints`.
FoundStart find_start(const Session& session, const std::filesystem::path& checkpoints,
                      Communicator& comm);

struct RunStart {
  TrainingState state;
  std::string line;  ///< for the user; empty: nothing to say
  std::vector<std::string> warnings;
};

/// Loads the weights, and all else of the engine's state where there is a checkpoint to go on from.
/// Collective. Throws CheckpointError. `checkpoints`: as of find_start().
RunStart load_start(const Session& session, const FoundStart& found, Engine& engine, Device& device,
                    const std::filesystem::path& checkpoints, Communicator& comm);

/// append where model.resize_vocabulary is set.
MissingTokens missing_tokens(const ModelSettings& model);

}  // namespace fp8train
