#pragma once
// A user's settings of how the work is laid over ranks. A strategy reads those that concern it; a
// further one has its settings here, and a key in lib/config for each.

#include <algorithm>
#include <cstdint>

#include "parallel/layout.h"

namespace fp8train {

/// Returns StrategySettings::bucket_bytes for a model with so many bytes of gradients, in whole
/// MiB: each exchange costs the host time, and one of fewer bytes begins earlier and takes less
/// memory.
constexpr int64_t default_bucket_bytes(double gradient_bytes) {
  constexpr int64_t kMebi = int64_t{1} << 20;
  constexpr double kBuckets = 128;
  constexpr int64_t kMin = 25 * kMebi, kMax = 256 * kMebi;
  const double bytes = std::min(gradient_bytes / kBuckets, static_cast<double>(kMax));
  return std::max(static_cast<int64_t>(bytes) / kMebi * kMebi, kMin);
}

/// A value of StrategySettings::shard_ranks: the ranks of a node.
constexpr int64_t kRanksOfNode = -1;

/// How the ranks of a run share parameters, gradients and the states of the optimizer.
struct StrategySettings {
  /// The ZeRO stage, which says what ranks share: 0: nothing (DDP); 1, 2, 3:
  /// parallel/store_layout.h
  int64_t zero_stage = 0;
  /// Bytes of gradients that are exchanged at a time: in a bucket, or of a segment of shards. A
  /// parameter that has more is exchanged alone, in pieces of at most as many bytes.
  int64_t bucket_bytes = int64_t{25} << 20;
  ParallelLayout layout;
  /// Stages 1 to 3: the number of ranks, one after another, that share one copy of everything; each
  /// such group has all of it, and gradients are summed over all groups. 0: all ranks share one.
  int64_t shard_ranks = 0;
  /// Stages 2 and 3: the gradients of each micro-batch are exchanged, and added in fp32 to the part
  /// of the sums that a rank has. False: whole gradients are added, and exchanged once in a step.
  bool sync_each_batch = false;

  /// Whether ranks gather weights in each pass.
  bool gathers_in_passes() const { return zero_stage == 3; }
  bool operator==(const StrategySettings&) const = default;
};

}  // namespace fp8train
