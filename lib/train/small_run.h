#pragma once
// A run cut down to what the memory and time of one machine allow, whose ranks divide its layers,
// its blocks and its batches as those of the run do.

#include "comm/topology.h"
#include "engine/engine.h"

namespace fp8train {

/// The settings of the small run, in which each rank of the data axis has the same micro-batches,
/// and its ranks.
struct SmallRun {
  EngineSettings engine;
  Topology ranks;
  int64_t divided = 1;  ///< the run's widths are so many times as large
};

/// Cuts down a run: at most 16 ranks or, with parallelism.shard_ranks, 32; one block more than
/// stages, and widths by which all that ranks and formats divide is still divided. Patterns that
/// match only what is left out are dropped. Throws ConfigError as Engine does where the run's ranks
/// do not fit its model.
SmallRun small_run(const EngineSettings& engine, const Topology& ranks);

}  // namespace fp8train
