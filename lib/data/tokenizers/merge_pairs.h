#pragma once
// Merges neighbouring tokens, the best pair first, the leftmost of equals, until none is left: in
// O(n log n) by a heap over a linked list, with some 45 bytes of memory for each token.

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

#include "base/error.h"

namespace fp8train::tokenizers {

/// The token that two neighbours become. Pairs of a lower rank merge first.
template <typename Rank>
struct PairMerge {
  Rank rank;
  int32_t id;
};

/// Merges the tokens of `ids` in place. `find(left, right)` returns the std::optional<PairMerge> of
/// two ids, which is empty if they do not merge. Throws DataError for 2^32 ids.
template <typename Rank, typename Find>
void merge_pairs(std::vector<int32_t>& ids, const Find& find) {
  constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  constexpr int32_t kMergedAway = -1;
  struct Candidate {
    PairMerge<Rank> merge;
    uint32_t left;
    // Top of the heap: the lowest rank, then the leftmost position.
    bool operator<(const Candidate& other) const {
      return merge.rank != other.merge.rank ? merge.rank > other.merge.rank : left > other.left;
    }
  };
  if (ids.size() >= kNone) throw DataError("a piece of text of more than 2^32 tokens");
  const auto count = static_cast<uint32_t>(ids.size());
  std::vector<uint32_t> next(count);
  std::vector<uint32_t> previous(count);
  for (uint32_t i = 0; i < count; ++i) {
    next[i] = i + 1 < count ? i + 1 : kNone;
    previous[i] = i > 0 ? i - 1 : kNone;
  }
  const auto merge_at = [&](uint32_t left) -> std::optional<PairMerge<Rank>> {
    if (left == kNone || ids[left] == kMergedAway || next[left] == kNone) return std::nullopt;
    return find(ids[left], ids[next[left]]);
  };
  std::vector<Candidate> first;
  for (uint32_t i = 0; i + 1 < count; ++i) {
    if (const auto merge = merge_at(i)) first.push_back({*merge, i});
  }
  std::priority_queue<Candidate> heap(std::less<Candidate>(), std::move(first));
  while (!heap.empty()) {
    const auto [merge, left] = heap.top();
    heap.pop();
    const auto now = merge_at(left);
    if (!now || now->rank != merge.rank || now->id != merge.id) continue;  // a neighbour has merged
    const uint32_t right = next[left];
    ids[left] = merge.id;
    ids[right] = kMergedAway;
    next[left] = next[right];
    if (next[left] != kNone) previous[next[left]] = left;
    for (const uint32_t changed : {previous[left], left}) {
      if (const auto found = merge_at(changed)) heap.push({*found, changed});
    }
  }
  std::erase(ids, kMergedAway);
}

}  // namespace fp8train::tokenizers
