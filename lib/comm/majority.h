#pragma once
// Who is wrong where ranks should say the same.

#include <cstdint>
#include <vector>

namespace fp8train {

/// Whether some of `values`, one of each rank, differ.
bool any_differ(const std::vector<uint64_t>& values);

/// The ranks whose value is not the most frequent one; all where no value is more frequent than
/// others.
std::vector<int> ranks_that_differ(const std::vector<uint64_t>& values);

}  // namespace fp8train
