#pragma once
// The loss of a model on held-out data, which ranks share.

#include <cstdint>
#include <optional>

#include "comm/communicator.h"
#include "data/corpus.h"
#include "engine/engine.h"

namespace fp8train {

/// Returns the loss over the first `max_batches` batches of each rank (0: all), or nothing if a
/// stop was requested meanwhile. Collective. Throws DataError if reading fails.
std::optional<LossReport> validation_loss(Engine& engine, const Corpus& data, int64_t max_batches,
                                          Communicator& comm);

}  // namespace fp8train
