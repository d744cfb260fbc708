#pragma once
// One micro-batch of a rank, in host memory.

#include <cstdint>
#include <vector>

namespace fp8train {

constexpr int32_t kIgnoredTarget = -1;  ///< no loss at this position

/// A batch of one rank. B is micro_batch_size, T is seq_length.
struct Batch {
  int64_t rows = 0;              ///< B
  int64_t columns = 0;           ///< T
  std::vector<int32_t> tokens;   ///< (B, T)
  std::vector<int32_t> targets;  ///< (B, T): the token after each token, or kIgnoredTarget
  /// If documents are masked (SampleForm), the position at which the document of each position
  /// begins, (B, T); else empty.
  std::vector<int32_t> document_starts;
  /// If samples are documents, the number of targets of the whole step, over its micro-batches and
  /// all ranks; 0: every position is a target.
  int64_t step_targets = 0;
};

}  // namespace fp8train
