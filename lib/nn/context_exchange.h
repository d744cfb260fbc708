#pragma once
// Ranks that share sequences exchange rows around attention, in one of two ways.
//
// They swap rows for heads (DeepSpeed-Ulysses, arXiv 2309.14509): outside of attention each has
// consecutive positions of every sequence, inside all positions and some of the heads.
//
// Or they gather keys and values: each has equally many chunks of equally many positions of every
// sequence. Of whole sequences it has two, one that few keys are before and one that many are, so
// that all see about as many pairs (Llama 3, arXiv 2407.21783, section 3.3.2). Where sequences have
// several documents, chunks are dealt by the pairs that are visible.

#include <cstdint>
#include <span>
#include <vector>

#include "nn/context.h"
#include "ops/attention/attention.h"

namespace fp8train {

/// rows: [B * T / ranks, W], this rank's positions. heads: [B * T, W / ranks], all positions, its
/// part of each of the `pieces`, which add up to W: the heads of q, of k and of v.
void rows_to_heads(const StepContext& context, const View& rows, const View& heads, int64_t batch,
                   std::span<const int64_t> pieces);
/// The inverse.
void heads_to_rows(const StepContext& context, const View& heads, const View& rows, int64_t batch,
                   std::span<const int64_t> pieces);

/// The chunks of sequences that ranks have.
struct ChunkDeal {
  int64_t per_rank = 1;
  std::vector<int64_t> chunks;  ///< [ranks, per_rank]: numbers in the sequence, ascending of a rank

  int64_t at(int64_t rank, int64_t i) const {
    return chunks[static_cast<size_t>(rank * per_rank + i)];
  }
  /// Returns the position in its sequence of token t of the `length` that a rank has of it.
  int64_t position(int64_t t, int64_t length, int64_t rank) const {
    const int64_t chunk = length / per_rank;
    return at(rank, t / chunk) * chunk + t % chunk;
  }
};

/// Returns the deal by which each rank has one chunk, in their order.
ChunkDeal deal_in_order(int64_t ranks);
/// Returns the deal of whole sequences.
ChunkDeal deal_ends(int64_t ranks);
/// Deals chunks that see so many pairs, equally many to each rank: the one that sees most to the
/// rank that sees the fewest so far.
ChunkDeal deal_by_pairs(std::span<const int64_t> pairs, int64_t ranks);
/// The same of a micro-batch of documents, by their starts, [rows, length]: eight chunks to each
/// rank if they divide the length.
ChunkDeal deal_documents(std::span<const int32_t> starts, int64_t length, int64_t ranks);

/// whole: [B, T, W], the rows of all ranks in the order of positions. `own` has the W elements of
/// this rank's rows, chunk after chunk.
void gather_chunks(const StepContext& context, const ops::HeadsView& own, const View& whole);
/// own = this rank's rows of the sum of all ranks' `partial`, fp32 [B, T, W], rounded once.
void sum_chunks(const StepContext& context, const View& partial, const ops::HeadsView& own);

}  // namespace fp8train
