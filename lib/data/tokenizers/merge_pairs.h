#pragma once
// Merges neighbouring tokens, the best pair first, the leftmost of equals, until none is left: in
// O(n log n) by a heap over a linked list.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

namespace fp8train::tokenizers {

/// The token that two neighbours become. Pairs of a lower rank merge first.
template <typename Rank>
struct PairMerge {
  Rank rank;
  int32_t id;
};

/// Merges the tokens of `ids` in place. `find(left, right)` returns the std::optional<PairMerge> of
/// two ids, which is empty if they do not merge.
template <typename Rank, typename Find>
void merge_pairs(std::vector<int32_t>& ids, const Find& find) {
  constexpr size_t kNone = std::numeric_limits<size_t>::max();
  constexpr int32_t kMergedAway = -1;
  struct Candidate {
    PairMerge<Rank> merge;
    size_t left, right;
    int32_t left_id, right_id;
    // Top of the heap: the lowest rank, then the leftmost position.
    bool operator<(const Candidate& other) const {
      return merge.rank != other.merge.rank ? merge.rank > other.merge.rank : left > other.left;
    }
  };
  const size_t count = ids.size();
  std::vector<size_t> next(count);
  std::vector<size_t> previous(count);
  for (size_t i = 0; i < count; ++i) {
    next[i] = i + 1 < count ? i + 1 : kNone;
    previous[i] = i > 0 ? i - 1 : kNone;
  }
  std::vector<Candidate> first;
  const auto offer = [&](size_t left, size_t right, const auto& add) {
    if (left == kNone || right == kNone) return;
    const std::optional<PairMerge<Rank>> merge = find(ids[left], ids[right]);
    if (merge) add(Candidate{*merge, left, right, ids[left], ids[right]});
  };
  for (size_t i = 0; i + 1 < count; ++i) {
    offer(i, i + 1, [&](const Candidate& made) { first.push_back(made); });
  }
  std::priority_queue<Candidate> heap(std::less<Candidate>(), std::move(first));
  while (!heap.empty()) {
    const Candidate best = heap.top();
    heap.pop();
    if (ids[best.left] != best.left_id || next[best.left] != best.right ||
        ids[best.right] != best.right_id) {
      continue;  // a neighbour has merged meanwhile
    }
    ids[best.left] = best.merge.id;
    ids[best.right] = kMergedAway;
    next[best.left] = next[best.right];
    if (next[best.left] != kNone) previous[next[best.left]] = best.left;
    const auto push = [&](const Candidate& made) { heap.push(made); };
    offer(previous[best.left], best.left, push);
    offer(best.left, next[best.left], push);
  }
  std::erase(ids, kMergedAway);
}

}  // namespace fp8train::tokenizers
