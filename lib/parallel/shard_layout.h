#pragma once
// Distributes values, gradients and moments over ranks (ZeRO, Rajbhandari et al. 2020, 1910.02054)
// by elements, so that ranks have equal shares for any sizes of tensors.
//
//   stage 1  moments, and values that layers do not read themselves, are stored in parts
//   stage 2  gradients too: whole ones exist for a unit or two, while backward makes them
//   stage 3  all values too: whole ones, and GEMM operands, exist for a unit or two
//
// The assignment of updates to ranks does not depend on the stage: sums, norms and updates have the
// same bits.

#include <cstdint>

#include "nn/parameter.h"
#include "nn/store_layout.h"

namespace fp8train {

struct ShardSettings {
  int stage = 1;
  int64_t bucket_bytes = int64_t{25}
                         << 20;  ///< of gradients in a segment; one parameter may be more
  /// Several micro-batches add to a gradient before it is exchanged: whole gradients stay.
  bool accumulates = false;
  /// What comes last reads parameters of what comes first: their turns differ.
  bool last_reads_first = false;
};

/// For a store that is not allocated yet. Units are used in order, first to last and back.
StoreLayout shard_layout(const ParameterStore& parameters, int ranks, int rank,
                         const ShardSettings& settings);

}  // namespace fp8train
