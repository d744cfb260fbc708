#pragma once
// What a checkpoint of a run holds and how a run goes on from one. A checkpoint folder is also a
// Hugging Face model folder: config.json, model.safetensors (fp32) and tokenizer.json, so that
// `model.from` and `generate` take it. Beside them: the optimizer's files
// (train/optimizer_state.h), scaling.safetensors (rows with delayed scaling) and state.json.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "train/engine.h"
#include "train/session.h"

namespace fp8train {

struct TrainingState {
  int64_t step = 0;              ///< optimizer steps done
  uint64_t sample_position = 0;  ///< of the loader
  int64_t tokens = 0;            ///< seen so far
  double loss = 0;               ///< last one logged
  double val_loss = 0;           ///< last one evaluated
  int64_t val_step = 0;          ///< 0: none yet
  double best_val_loss = 0;      ///< 0: none yet
  int64_t best_val_step = 0;
};

/// Saves under `root` as step-NNNNNN and keeps the newest `keep_last`. All ranks call it; it
/// returns when the checkpoint is there. Throws DeviceError or CheckpointError, or NumericError
/// where a weight is not finite; what was saved earlier stays.
void save_training_state(const std::filesystem::path& root, Engine& engine, const Session& session,
                         const TrainingState& state, int64_t keep_last, Communicator& comm);

struct ResumedRun {
  TrainingState state;
  std::filesystem::path folder;
  std::vector<std::string> notes;  ///< what differs from the run that saved it and is no error
};

/// Collective: the newest valid checkpoint under `root`, as the first rank finds it, loaded into
/// the engine; nothing when there is none at all. `notes` receives a line for each checkpoint that
/// was passed over because it is damaged or its weights are not finite. Throws CheckpointError when
/// all are damaged, or when the checkpoint belongs to another model, row or data set.
std::optional<ResumedRun> resume_newest(const std::filesystem::path& root, Engine& engine,
                                        const Session& session, std::vector<std::string>& notes,
                                        Communicator& comm);

/// Whether a checkpoint holds scales.
bool has_scaling(const std::filesystem::path& folder);

/// The scales of a checkpoint's delayed rows; nothing to do for others. Throws CheckpointError when
/// they are missing or differ in shape.
void load_scaling(const std::filesystem::path& folder, ScalingState& scaling);

/// One checkpoint by its folder. Collective.
ResumedRun resume_from(const std::filesystem::path& folder, Engine& engine, const Session& session,
                       Communicator& comm);

}  // namespace fp8train
