#include "nn/context_gather.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/error.h"
#include "ops/attention/copy_rows.h"
#include "tensor/tensor.h"

namespace fp8train {
namespace {

char* at(const View& view, int64_t element) {
  return view.as<char>() + element * static_cast<int64_t>(size_of(view.dtype));
}

/// Copies rows of a layer from or to memory of their own, [B, T / ranks, W].
void copy_own(const StepContext& context, const ops::HeadsView& own, const View& rows,
              bool to_rows) {
  const int64_t batch = rows.shape[0];
  const int64_t length = rows.shape[1];
  const int64_t width = rows.shape[2];
  const std::array<int64_t, 3> of_own = {0, own.length_capacity * own.row_stride, own.row_stride};
  const std::array<int64_t, 3> of_rows = {0, length * width, width};
  ops::copy_rows(context.stream, {.from = to_rows ? own.data : rows.data,
                                  .to = to_rows ? rows.data : own.data,
                                  .dtype = own.dtype,
                                  .extents = {1, batch, length},
                                  .width = width,
                                  .from_strides = to_rows ? of_own : of_rows,
                                  .to_strides = to_rows ? of_rows : of_own});
}

/// Copies [ranks, B, T / ranks, W], the rows of each rank, to [B, T, W], or back: together those of
/// ranks whose chunks lie at equal distances.
void copy_chunks(const StepContext& context, const View& of_ranks, const View& whole,
                 bool to_whole) {
  const int64_t ranks = context.context_ranks->ranks();
  const int64_t batch = whole.shape[0];
  const int64_t length = whole.shape[1];
  const int64_t width = whole.shape[2];
  const ChunkDeal& deal = *context.chunks;
  const int64_t own = length / ranks * width;
  const int64_t chunk = length / ranks / deal.per_rank;
  for (int64_t i = 0; i < deal.per_rank; ++i) {
    for (int64_t rank = 0, count = 1; rank < ranks; rank += count) {
      const auto distance = [&](int64_t of) { return deal.at(of + 1, i) - deal.at(of, i); };
      const int64_t step = rank + 1 < ranks ? distance(rank) : 0;
      for (count = 1; rank + count < ranks && distance(rank + count - 1) == step;) {
        ++count;
      }
      void* const rows = at(of_ranks, rank * batch * own + i * chunk * width);
      void* const positions = at(whole, deal.at(rank, i) * chunk * width);
      const std::array<int64_t, 3> of_rows = {batch * own, own, width};
      const std::array<int64_t, 3> of_positions = {step * chunk * width, length * width, width};
      ops::copy_rows(context.stream, {.from = to_whole ? rows : positions,
                                      .to = to_whole ? positions : rows,
                                      .dtype = whole.dtype,
                                      .extents = {count, batch, chunk},
                                      .width = width,
                                      .from_strides = to_whole ? of_rows : of_positions,
                                      .to_strides = to_whole ? of_positions : of_rows});
    }
  }
}

}  // namespace

ChunkDeal deal_in_order(int64_t ranks) {
  ChunkDeal deal = {.per_rank = 1, .chunks = std::vector<int64_t>(static_cast<size_t>(ranks))};
  std::iota(deal.chunks.begin(), deal.chunks.end(), int64_t{0});
  return deal;
}

ChunkDeal deal_ends(int64_t ranks) {
  ChunkDeal deal = {.per_rank = 2, .chunks = {}};
  for (int64_t rank = 0; rank < ranks; ++rank) {
    deal.chunks.insert(deal.chunks.end(), {rank, 2 * ranks - 1 - rank});
  }
  return deal;
}

ChunkDeal deal_by_pairs(std::span<const int64_t> pairs, int64_t ranks) {
  check(std::ssize(pairs) % ranks == 0, "ranks have equally many chunks");
  const int64_t per_rank = std::ssize(pairs) / ranks;
  std::vector<size_t> order(pairs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return pairs[a] > pairs[b]; });
  struct OfRank {
    std::vector<int64_t> chunks;
    int64_t pairs = 0;
  };
  std::vector<OfRank> dealt(static_cast<size_t>(ranks));
  for (const size_t chunk : order) {
    OfRank* least = nullptr;
    for (OfRank& rank : dealt) {
      const bool has_all = std::ssize(rank.chunks) == per_rank;
      least = !has_all && (least == nullptr || rank.pairs < least->pairs) ? &rank : least;
    }
    least->chunks.push_back(static_cast<int64_t>(chunk));
    least->pairs += pairs[chunk];
  }
  ChunkDeal deal = {.per_rank = per_rank, .chunks = {}};
  for (OfRank& rank : dealt) {
    std::ranges::sort(rank.chunks);
    deal.chunks.insert(deal.chunks.end(), rank.chunks.begin(), rank.chunks.end());
  }
  return deal;
}

ChunkDeal deal_documents(std::span<const int32_t> starts, int64_t length, int64_t ranks) {
  int64_t chunks = 8 * ranks;
  while (length % chunks != 0 && chunks > ranks) {
    chunks /= 2;
  }
  std::vector<int64_t> pairs(static_cast<size_t>(chunks));
  const int64_t of_chunk = length / chunks;
  for (int64_t i = 0; i < std::ssize(starts); ++i) {
    const int64_t position = i % length;
    pairs[static_cast<size_t>(position / of_chunk)] +=
        position + 1 - starts[static_cast<size_t>(i)];
  }
  return deal_by_pairs(pairs, ranks);
}

void gather_chunks(const StepContext& context, const ops::HeadsView& own, const View& whole) {
  ArenaScope scope(*context.scratch);
  const int64_t ranks = context.context_ranks->ranks();
  const Shape rows = {whole.shape[0], whole.shape[1] / ranks, whole.shape[2]};
  const View of_ranks = allocate(*context.scratch, whole.dtype, {ranks, rows.count()});
  const View part = {at(of_ranks, context.context_ranks->rank() * rows.count()), whole.dtype, rows};
  copy_own(context, own, part, true);
  context.context_ranks->gather(context, part, of_ranks);
  copy_chunks(context, of_ranks, whole, true);
}

void sum_chunks(const StepContext& context, const View& partial, const ops::HeadsView& own) {
  ArenaScope scope(*context.scratch);
  const int64_t ranks = context.context_ranks->ranks();
  const Shape rows = {partial.shape[0], partial.shape[1] / ranks, partial.shape[2]};
  const View sum = allocate(*context.scratch, own.dtype, rows);
  const View of_ranks = allocate(*context.scratch, partial.dtype, {ranks, rows.count()});
  copy_chunks(context, of_ranks, partial, false);
  context.context_ranks->sum_rows(context, of_ranks, sum);
  copy_own(context, own, sum, false);
}

}  // namespace fp8train
