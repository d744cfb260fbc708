#pragma once
// Ranks that share sequences and gather keys and values: each has two chunks of T / (2 ranks)
// positions of every sequence, one that few keys are before and one that many are, so that all see
// about as many pairs (Llama 3, arXiv 2407.21783, section 3.3.2).

#include <array>
#include <cstdint>

#include "nn/context.h"
#include "ops/attention/attention.h"

namespace fp8train {

/// Returns the numbers of a rank's chunks among those of a sequence.
constexpr std::array<int64_t, 2> chunks_of_rank(int64_t rank, int64_t ranks) {
  return {rank, 2 * ranks - 1 - rank};
}

/// whole: [B, T, W], the rows of all ranks in the order of positions. `own` has the W elements of
/// this rank's rows, those of its first chunk before those of its second.
void gather_chunks(const StepContext& context, const ops::HeadsView& own, const View& whole);
/// own = this rank's rows of the sum of all ranks' `partial`, fp32 [B, T, W], rounded once.
void sum_chunks(const StepContext& context, const View& partial, const ops::HeadsView& own);

}  // namespace fp8train
