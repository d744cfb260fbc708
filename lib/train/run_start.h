#pragma once
// The start of a run: its folder, its plan of memory, and the state that it begins with: a
// checkpoint, the weights of a model folder, or initial values.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "comm/communicator.h"
#include "device/device.h"
#include "engine/engine.h"
#include "io/checkpoint/checkpoint.h"
#include "train/checkpoint/training_state.h"
#include "train/checkpoint/weights.h"
#include "train/rank_device.h"
#include "train/records/run_records.h"
#include "train/run.h"
#include "train/run_listener.h"
#include "train/session.h"

namespace fp8train {

/// The checkpoint that a run resumes from, if there is one.
struct FoundStart {
  std::optional<std::filesystem::path> checkpoint;
  int64_t step = 0;                ///< optimizer steps that are done in it
  std::vector<std::string> notes;  ///< a line for each checkpoint that cannot be used; first rank
};

/// Returns the checkpoint to start from, which checkpoint.resume decides; the first rank finds it.
/// `depth`: sizes where load_start() follows, which hashes what it reads; hashes reads all of it,
/// the weights too. Collective. Throws CheckpointError if all checkpoints of the run, or the one
/// that checkpoint.resume names, are damaged, and ConfigError if checkpoint.resume is never and
/// `checkpoints` holds some.
FoundStart find_start(const Session& session, const std::filesystem::path& checkpoints,
                      Communicator& comm, Verify depth);
/// Returns the newest checkpoint that is older than `damaged`, which load_start() has refused for
/// the reason `why`. Collective. Throws as find_start().
FoundStart find_older_start(const std::filesystem::path& checkpoints, const FoundStart& damaged,
                            const std::string& why, Communicator& comm);

/// Whether a run that continues from this step has nothing to do. Without a summary it ended
/// between its last step and the evaluation that follows it.
bool is_over(const Session& session, const RunDirectory& directory, int64_t step);

/// The parts of a run before its engine is made.
struct RunParts {
  Stopwatch since_start;
  const Communicator* comm;
  const RankDevice* rank_device;
  Session session;  ///< of the stage that the run starts in
  RunRecords records;
  RunListener* listener;       ///< not owned; does nothing on ranks that do not lead
  std::string earlier_config;  ///< of an earlier start in this folder; empty: there was none
  int64_t threads = 0;
  FoundStart found;
  StepPlan plan;  ///< of the stage
};

/// Opens the data and the folder of a run, finds its start, and plans its memory, which fits. The
/// communicator and the device outlive the result. Collective. Throws as train() does.
RunParts start_run(const RunRequest& request, Communicator& comm, const RankDevice& rank_device);

/// Loads the checkpoint that was found, with all state of the engine. If there is none, loads the
/// weights that model.from names, whose folder the result then has, or draws initial ones.
/// Collective. Throws as load_checkpoint(), and CheckpointError where the weights cannot be used.
ResumedRun load_start(const Session& session, const FoundStart& found, Engine& engine,
                      Device& device, Communicator& comm);

}  // namespace fp8train
