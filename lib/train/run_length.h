#pragma once
// How many optimizer steps a run has: what training.max_steps, max_tokens or max_epochs come to.

#include <cstdint>
#include <string>

#include "config/settings.h"

namespace fp8train {

/// Returns the optimizer steps of a run on `data_ranks` ranks of the data axis; 0: not known,
/// because no length is given, or because training.max_epochs needs `epoch_samples`, the samples of
/// one pass over the data (0: the data have not been read). Throws ConfigError if the tokens of a
/// step or of the run are too many to be counted.
int64_t resolve_max_steps(const TrainingSettings& training, const StepSettings& step,
                          int data_ranks, uint64_t epoch_samples);

/// Returns the key that gives the length of the run.
std::string length_key(const TrainingSettings& training);

}  // namespace fp8train
