#pragma once
// Maps sample number i to a window of a corpus. The map is a pure function of (seed, epoch, index)
// and stores nothing, so a run continues at any sample on any number of ranks.

#include <cstdint>

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

}  // namespace fp8train
