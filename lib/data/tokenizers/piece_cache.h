#pragma once
// Ids of pieces that a thread has met: a table of fixed size in which a new piece takes the slot of
// another one. Short pieces, which are most, share one cache line in two.

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace fp8train::tokenizers {

/// For pieces of up to KeyWords * 8 - 1 bytes and up to `most_ids` ids.
template <size_t KeyWords, size_t most_ids>
class PieceTable {
 public:
  static constexpr size_t kLongestKey = KeyWords * sizeof(uint64_t) - 1;

  explicit PieceTable(size_t slots_log2)
      : slots_(size_t{1} << slots_log2), shift_(64 - slots_log2) {}

  struct Slot {
    std::array<uint64_t, KeyWords> key = {};  ///< the bytes, zeros, and the length + 1 as last byte
    std::array<int32_t, most_ids> ids = {};
    uint32_t count = 0;
  };

  /// The slot of a piece: it holds the piece's ids where `found`, else is to be given to store().
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

  /// The ids of the piece that find() was last asked for and did not find.
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
