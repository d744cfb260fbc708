#pragma once
// Finds the ranks whose value differs from that of most ranks.

#include <cstdint>
#include <vector>

namespace fp8train {

/// Whether some of `values`, one of each rank, differ.
bool any_differ(const std::vector<uint64_t>& values);

/// Returns the ranks whose value is not the most frequent one; all ranks if several values are the
/// most frequent. `values`: one of each rank, at least one.
std::vector<int> ranks_that_differ(const std::vector<uint64_t>& values);

}  // namespace fp8train
