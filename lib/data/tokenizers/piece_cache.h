#pragma once
// The ids of pieces that a thread has met: a table of fixed size in which a new piece takes the
// slot of another one. The slots of short pieces are half a cache line.

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace fp8train::tokenizers {

/// A table for pieces of up to KeyWords * 8 - 1 bytes and up to `most_ids` ids.
template <size_t KeyWords, size_t most_ids>
class PieceTable {
 public:
  static constexpr size_t kLongestKey = KeyWords * sizeof(uint64_t) - 1;

  /// Makes a table of 2^slots_log2 slots.
  explicit PieceTable(size_t slots_log2)
      : slots_(size_t{1} << slots_log2), shift_(64 - slots_log2) {}

  /// A piece and its ids.
  struct Slot {
    std::array<uint64_t, KeyWords> key = {};  ///< the bytes, zeros, and the length + 1 as last byte
    std::array<int32_t, most_ids> ids = {};
    uint32_t count = 0;
  };

  /// Returns the slot of a piece of at most kLongestKey bytes. If `found`, it holds the piece's
  /// ids; if not, store() takes it.
  Slot& find(std::string_view piece, bool& found) {
    std::array<uint64_t, KeyWords> key = {};
    std::memcpy(key.data(), piece.data(), piece.size());
    key[KeyWords - 1] |= static_cast<uint64_t>(piece.size() + 1) << 56;
    uint64_t hash = 0;
    for (const uint64_t word : key) {
      hash = (hash ^ word) * 0x9E3779B97F4A7C15U;
      hash ^= hash >> 32;
    }
    hash *= 0xD6E8FEB86659FD93U;
    Slot& slot = slots_[hash >> shift_];
    found = slot.key == key;
    if (!found) {
      wanted_ = key;
    }
    return slot;
  }

  /// Stores the ids of the piece that find() was last called with and did not find. Stores nothing
  /// if there are more than `most_ids`.
  void store(Slot& slot, std::span<const int32_t> ids) {
    if (ids.size() > most_ids) return;
    slot.key = wanted_;
    slot.count = static_cast<uint32_t>(ids.size());
    std::memcpy(slot.ids.data(), ids.data(), ids.size() * sizeof(int32_t));
  }

 private:
  std::vector<Slot> slots_;
  size_t shift_;
  std::array<uint64_t, KeyWords> wanted_ = {};
};

}  // namespace fp8train::tokenizers
