#pragma once
// Maps sample number i of a run to a source and a sample of it. The map is a pure function of the
// weights, the seed and i and stores nothing, so a run continues at any sample on any number of
// ranks.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace fp8train {

/// Deals samples out to sources by weight. Immutable. A balanced binary tree halves the list of
/// sources; at a node whose left half has the part p of the weight, round(n * p) of its first n
/// samples go to the left. The number grows by 0 or 1 with n, so that each sample has one way down
/// the tree, found without the samples before it. Of the first n samples a source has its part of
/// the weight to within ceil(log2(sources)) / 2: half a sample of two sources, one of four.
///
/// Taking the source that lacks most (Megatron-LM: megatron/core/datasets/helpers.cpp,
/// build_blending_indices) needs all samples before, and an index of them in memory. A random
/// choice by weight would be off by the square root of n.
class Blend {
 public:
  /// Takes weights above 0, of at least one source. Only their ratios matter.
  explicit Blend(std::span<const double> weights);

  /// A source, and the number of a sample of it.
  struct Draw {
    size_t source;
    uint64_t index;  ///< counted over the samples of this source
  };
  /// Returns the source of a sample, and which one of its samples it is. `sample` is below 2^62.
  Draw draw(uint64_t sample) const;

  /// Returns the number of samples of a source among the first `samples`.
  uint64_t count(size_t source, uint64_t samples) const;

 private:
  /// Returns how many of the first `samples` of the node of sources [begin, end) are of [begin,
  /// middle).
  uint64_t left_of(uint64_t samples, size_t begin, size_t middle, size_t end) const;

  std::vector<double> before_;  ///< sums of the weights in front of each source, and of all
};

}  // namespace fp8train
