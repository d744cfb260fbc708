#pragma once
// Finds the ranks whose value differs from that of most ranks.

#include <cstdint>
#include <vector>

namespace fp8train {

/// Whether some of `values`, one of each rank, differ.
bool any_differ(const std::vector<uint64_t>& values);

/// The ranks whose value is not the most frequent one; all where no value is more frequent than
/// others.
std::vector<int> ranks_that_differ(const std::vector<uint64_t>& values);

}  // namespace fp8train
