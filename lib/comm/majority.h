#pragma once
// Finds the ranks whose value differs from that of most ranks.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

namespace fp8train {

/// Whether some of `values`, one of each rank, differ.
inline bool any_differ(const std::vector<uint64_t>& values) {
  return std::adjacent_find(values.begin(), values.end(), std::not_equal_to<>()) != values.end();
}

/// Returns the ranks whose value is not the most frequent one; all ranks if several values are the
/// most frequent. `values`: one of each rank, at least one.
inline std::vector<int> ranks_that_differ(const std::vector<uint64_t>& values) {
  std::map<uint64_t, size_t> counts;
  for (const uint64_t value : values) {
    ++counts[value];
  }
  const auto less = [](const auto& a, const auto& b) { return a.second < b.second; };
  const auto most = std::max_element(counts.begin(), counts.end(), less);
  const auto equal = [&](const auto& one) { return one.second == most->second; };
  const bool is_clear = std::count_if(counts.begin(), counts.end(), equal) == 1;
  std::vector<int> found;
  for (size_t rank = 0; rank < values.size(); ++rank) {
    if (!is_clear || values[rank] != most->first) {
      found.push_back(static_cast<int>(rank));
    }
  }
  return found;
}

}  // namespace fp8train
