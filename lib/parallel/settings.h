#pragma once
// A user's settings of how the work is laid over ranks. A strategy reads those that concern it; a
// further one has its settings here, and a key in lib/config for each.

#include <cstdint>

namespace fp8train {

/// How the ranks of a run share parameters, gradients and the states of the optimizer.
struct StrategySettings {
  /// What ranks that train share: 0: nothing (DDP); 1, 2, 3: parallel/shard_layout.h
  int64_t zero_stage = 0;
  /// Bytes of gradients that are exchanged at a time: in a bucket, or of a segment of shards. A
  /// parameter that has more is exchanged alone, in pieces of at most as many bytes.
  int64_t bucket_bytes = int64_t{25} << 20;

  bool operator==(const StrategySettings&) const = default;
};

}  // namespace fp8train
