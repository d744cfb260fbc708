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

#include "nn/parameter.h"
#include "parallel/store_layout.h"
#include "parallel/strategy.h"

namespace fp8train {

/// Returns the layout of a store that is not allocated yet over the ranks that share it. Units
/// are used in order, first to last and back. A segment has at most StrategySettings::bucket_bytes
/// of gradients; one parameter may be more. If the site accumulates whole gradients, these keep
/// memory of their own. Throws InternalError unless the stage is 1, 2 or 3.
StoreLayout shard_layout(const ParameterStore& parameters, const StrategySite& site);

}  // namespace fp8train
