#pragma once
// training.on_divergence: rollback. A run that has diverged goes back, in its process, to an
// earlier checkpoint, and leaves out the batches that it has seen since (as PaLM did by hand, arXiv
// 2204.02311 section 5.1: the same data did not spike from another state).
//
// Every decision follows from the checkpoint and from numbers that the ranks agree on: a run that
// is killed at any moment and resumed does the same again, with the same bits.

#include <filesystem>

#include "comm/communicator.h"
#include "train/checkpoint/training_state.h"
#include "train/watch/divergence.h"

namespace fp8train {

/// Brings the engine back to the newest usable checkpoint under `root` that is older than
/// divergence.first_step(), of those that were saved at checkpoint.interval where there are any. If
/// the run has already gone back to it and has saved nothing since, the checkpoint before it is
/// used, if there is one. Newer checkpoints are deleted.
///
/// `now` is the state of the run that diverged. The state that is returned continues behind the
/// samples that it has seen, and lists its rollbacks and this one. Collective. Throws
/// DivergenceError, with why, where there is no such checkpoint or training.max_rollbacks is
/// reached.
ResumedRun roll_back(const DivergenceError& divergence, const std::filesystem::path& root,
                     Engine& engine, const Session& session, const TrainingState& now,
                     Communicator& comm);

/// Ends a run that has diverged and does not go back. Its checkpoints of divergence.first_step()
/// and later become step-000100.diverged, which no run resumes from. Collective. Throws the
/// divergence with a sentence that names the newest checkpoint left.
[[noreturn]] void end_diverged(const DivergenceError& divergence, const std::filesystem::path& root,
                               Communicator& comm);

}  // namespace fp8train
