#pragma once
// The content of a run's checkpoint, and how a run continues from one. A checkpoint folder is also
// a Hugging Face model folder: config.json, model.safetensors (fp32) and tokenizer.json, so that
// `model.from` and `generate` take it. Next to them: the optimizer's files
// (train/checkpoint/optimizer_state.h), scaling.safetensors (train/checkpoint/scaling_file.h) and
// state.json.
//
// Of a run with adapters a checkpoint is a folder of peft: adapter_model.safetensors and
// adapter_config.json, which names the folder of the base model. The base does not change;
// state.json has the hash of its files, and a run continues only with these. A base without a
// folder is drawn again.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "io/checkpoint/checkpoint_retention.h"
#include "train/checkpoint/state_copy.h"
#include "train/session.h"
#include "train/watch/divergence.h"

namespace fp8train {

/// The state of a run outside of the engine, as state.json of a checkpoint holds it.
struct TrainingState {
  int64_t step = 0;              ///< optimizer steps done
  uint64_t sample_position = 0;  ///< the position of the loader
  int64_t tokens = 0;            ///< seen so far
  double loss = 0;               ///< last one logged
  double first_loss = 0;         ///< that of step 1; 0: not known
  double val_loss = 0;           ///< last one evaluated
  int64_t val_step = 0;          ///< 0: none yet
  double best_val_loss = 0;      ///< 0: none yet
  int64_t best_val_step = 0;
  bool is_scheduled = false;  ///< of a step at checkpoint.interval, or put off from one; any save
                              ///< where there is no interval
  bool save_is_due = false;   ///< one at checkpoint.interval was put off and is still to come
  int64_t unseen_skips = 0;   ///< skipped steps that no check has seen yet
  int64_t checked_step = 0;   ///< last one that DivergenceWatch has checked
  SpikeHistory spikes;
  std::vector<Rollback> rollbacks;  ///< in the order in which they happened
};

/// Copies all that this rank writes into a checkpoint. The memory of an earlier copy is used again.
/// All ranks call it. Throws NumericError if a weight is not finite.
void copy_training_state(Engine& engine, const Session& session, const TrainingState& state,
                         Communicator& comm, StateCopy& into);

/// The last evaluation at or before the step of a checkpoint; nothing where there was none, or its
/// loss was not finite. Throws CheckpointError when state.json cannot be read.
std::optional<CheckpointLoss> evaluated_loss(const std::filesystem::path& folder);

/// Returns TrainingState::is_scheduled of a checkpoint, and true for a version that did not note
/// it. Throws CheckpointError.
bool is_scheduled(const std::filesystem::path& folder);

/// Throws CheckpointError where a file is missing or the state cannot be true. Loading finds the
/// rest.
void check_saved_state(const std::filesystem::path& folder);

/// Throws CheckpointError as check_saved_state(), and where a weight is not finite.
void check_content(const std::filesystem::path& folder);

/// Compares a checkpoint with the run that would resume from it, as load_checkpoint() does, and
/// loads nothing. Returns the notes of load_checkpoint(), but for those on ranks. Throws
/// CheckpointError as load_checkpoint() does.
std::vector<std::string> check_resumes(const std::filesystem::path& folder, const Session& session,
                                       Decoder& model);

/// A run that was loaded from a checkpoint.
struct ResumedRun {
  TrainingState state;
  std::filesystem::path folder;
  std::vector<std::string> notes;    ///< differences from the run that saved it that are not errors
  std::vector<std::string> changes;  ///< changed_rate_settings()
};

/// Loads a checkpoint into the engine. Each rank hashes what it reads; the first one also the files
/// that none reads. Collective: throws on all ranks if on one, OtherRunError when the checkpoint
/// belongs to another model, plan or data set, CheckpointError, naming the rank, when a file is
/// damaged. The state of the engine is then of no use.
ResumedRun load_checkpoint(const std::filesystem::path& folder, Engine& engine,
                           const Session& session, Communicator& comm);

}  // namespace fp8train
