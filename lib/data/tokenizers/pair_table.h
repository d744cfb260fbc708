#pragma once
// The merges of a BPE vocabulary: a hash table from two ids to a rank and an id. Filled once, then
// read by several threads.

#include <cstdint>
#include <limits>
#include <vector>

namespace fp8train::tokenizers {

/// The rank of a merge and the id that it makes. Merges of a lower rank come first.
struct Merge {
  uint32_t rank = kNoRank;
  int32_t id = -1;
  static constexpr uint32_t kNoRank = std::numeric_limits<uint32_t>::max();
};

/// A hash table from two ids to a Merge.
class PairTable {
 public:
  /// Makes a table for up to `pairs` pairs.
  explicit PairTable(size_t pairs) {
    size_t slots = 16;
    while (slots < 2 * pairs) slots *= 2;
    slots_.resize(slots);
    mask_ = slots - 1;
  }

  /// Sets the entry of a pair, which replaces an earlier one.
  void set(int32_t left, int32_t right, Merge merge) {
    const uint64_t key = key_of(left, right);
    size_t at = hash(key);
    while (slots_[at].key != kEmpty && slots_[at].key != key) {
      at = (at + 1) & mask_;
    }
    slots_[at] = {key, merge};
  }

  /// Returns the entry of a pair, or one with rank kNoRank and id -1 if there is none.
  Merge find(int32_t left, int32_t right) const {
    const uint64_t key = key_of(left, right);
    for (size_t at = hash(key);; at = (at + 1) & mask_) {
      const Slot& slot = slots_[at];
      if (slot.key == key) return slot.merge;
      if (slot.key == kEmpty) return {};
    }
  }

 private:
  static constexpr uint64_t kEmpty = std::numeric_limits<uint64_t>::max();
  struct Slot {
    uint64_t key = kEmpty;
    Merge merge;
  };
  static uint64_t key_of(int32_t left, int32_t right) {
    return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) |
           static_cast<uint32_t>(right);
  }
  size_t hash(uint64_t key) const {
    key *= 0x9E3779B97F4A7C15U;
    return (key ^ (key >> 32)) & mask_;
  }

  std::vector<Slot> slots_;
  size_t mask_ = 0;
};

}  // namespace fp8train::tokenizers
