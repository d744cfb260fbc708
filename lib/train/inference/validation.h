#pragma once
// The loss of a model on held-out data, which ranks share.

#include <cstdint>
#include <optional>

#include "comm/communicator.h"
#include "data/corpus.h"
#include "train/step/engine.h"

namespace fp8train {

/// Collective: the loss over `max_batches` of each rank's batches (0: all); nothing when a stop was
/// asked for meanwhile.
std::optional<LossReport> validation_loss(Engine& engine, const Corpus& data, int64_t max_batches,
                                          Communicator& comm);

}  // namespace fp8train
