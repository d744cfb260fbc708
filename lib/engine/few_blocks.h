#pragma once
// Dry runs of deep models whose blocks are all alike, from those of a few blocks: each further
// block adds the same memory, work and messages.

#include "engine/dry_run.h"

namespace fp8train {

/// Whether all blocks of a model have the same layers in the same formats, and nothing that a step
/// needs depends in another way on their number.
bool has_equal_blocks(const EngineSettings& settings);

/// Returns nearly what logged_step() does for an engine with equal blocks, from two runs of a few
/// blocks of the rank's stage. They differ where exchanges or the sizes of buffers do not end with
/// blocks. A stage with no more blocks, or with several chunks, is run as it is.
DryRunStep logged_few_blocks(const EngineSettings& settings, const DeviceTraits& traits,
                             const Topology& ranks, int rank);

}  // namespace fp8train
