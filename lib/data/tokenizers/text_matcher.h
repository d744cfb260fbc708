#pragma once
// Finds which texts of a set end at each byte of another text, in one pass over it: the automaton
// of Aho and Corasick (Communications of the ACM 18, 1975). Time grows with the text and with what
// is found in it, however long the texts of the set are. Memory: some 90 bytes for each node, that
// is for each byte of the set's texts that does not belong to a shared beginning; at most 2^24
// nodes.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "data/tokenizers/pair_table.h"

namespace fp8train::tokenizers {

/// An automaton for a set of texts. Immutable.
class TextMatcher {
 public:
  /// A text and the number that stands for it.
  using Entry = std::pair<std::string, int32_t>;
  /// A text that was found. `value` is -1 if there is none.
  struct Match {
    int32_t value = -1;
    uint32_t length = 0;  ///< in bytes
  };
  static constexpr int32_t kStart = 0;  ///< state in front of a text

  /// Empty texts are never found; of equal ones the last is. Throws DataError, which begins with
  /// `where`, for texts with more than 2^24 nodes.
  TextMatcher(const std::vector<Entry>& entries, const std::string& where);

  /// Returns the state behind `byte`.
  int32_t next(int32_t state, char byte) const {
    const auto wanted = static_cast<uint8_t>(byte);
    for (; state != kStart; state = nodes_[static_cast<size_t>(state)].fallback) {
      const int32_t child = children_.find(state, wanted).id;
      if (child >= 0) return child;
    }
    return first_[wanted];
  }

  /// Returns the longest text that ends in `state`.
  Match longest(int32_t state) const {
    const Node& node = nodes_[static_cast<size_t>(ending(state))];
    return {node.value, node.length};
  }

  /// Calls visit(Match) for each text that ends in `state`, the longest first.
  template <typename Visit>
  void for_each_ending(int32_t state, const Visit& visit) const {
    for (state = ending(state); state != kStart;) {
      const Node& node = nodes_[static_cast<size_t>(state)];
      visit(Match{node.value, node.length});
      state = node.shorter;
    }
  }

 private:
  struct Node {
    int32_t fallback = kStart;  ///< node of the longest shorter ending that is a beginning
    int32_t shorter = kStart;   ///< nearest of these that is a text
    int32_t value = -1;
    uint32_t length = 0;
  };
  int32_t ending(int32_t state) const {
    const Node& node = nodes_[static_cast<size_t>(state)];
    return node.value >= 0 ? state : node.shorter;
  }

  std::vector<Node> nodes_;
  PairTable children_;  ///< node and byte to the next node (id)
  std::array<int32_t, 256> first_ = {};
};

}  // namespace fp8train::tokenizers
