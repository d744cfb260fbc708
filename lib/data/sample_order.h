#pragma once
// Maps sample number i of a run to a source, and to a window of its corpus. The maps are pure
// functions of the weights, the seed, the epoch and i and store nothing, so a run continues at any
// sample on any number of ranks.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace fp8train {

/// A bijection of [0, count) chosen by `key`: a balanced Feistel network over the next even power
/// of two, whose round function is Philox, walked until it lands inside [0, count) ("cycle
/// walking", Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002). No memory;
/// at most four rounds of walking on average.
class Permutation {
 public:
  /// `count` is in [1, 2^62].
  Permutation(uint64_t key, uint64_t count);
  /// Returns the number that `index` is mapped to. Throws InternalError unless `index` is below
  /// `count`.
  uint64_t operator()(uint64_t index) const;

 private:
  uint64_t encipher(uint64_t value) const;

  uint64_t key_;
  uint64_t count_;
  int half_bits_;
};

/// A sample is a window of seq_length + 1 tokens: inputs are all but the last, targets all but the
/// first. Shuffled: in each epoch the windows begin at i * seq_length + offset, where offset is
/// drawn for the epoch from [0, seq_length), or from fewer values if the corpus has no space for
/// more, and are permuted. Not shuffled: windows in file order, advancing by seq_length and
/// wrapping at the end (llm.c's order).
class SampleOrder {
 public:
  /// Throws DataError when the corpus has fewer than seq_length + 1 tokens.
  SampleOrder(int64_t corpus_size, int64_t seq_length, bool shuffle, uint64_t seed);

  uint64_t samples_per_epoch() const { return samples_per_epoch_; }

  /// Returns the first token of a sample. `sample` is counted from the start of training over all
  /// epochs.
  int64_t start_of(uint64_t sample) const;

 private:
  int64_t corpus_size_;
  int64_t seq_length_;
  bool shuffle_;
  uint64_t seed_;
  uint64_t samples_per_epoch_;
};

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
  /// Walks down the tree to one source; the number becomes that of its samples.
  /// goes_left(samples, begin, middle, end) says where a node is left by its first half.
  template <typename GoesLeft>
  Draw descend(uint64_t samples, const GoesLeft& goes_left) const;

  std::vector<double> before_;  ///< sums of the weights in front of each source, and of all
};

}  // namespace fp8train
