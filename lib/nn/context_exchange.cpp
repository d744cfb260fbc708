#include "nn/context_exchange.h"

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

/// Rows, the blocks that ranks swap, [ranks, B, T / ranks, W / ranks], and heads.
struct Swap {
  const StepContext* context;
  int64_t ranks, batch, length, width;  ///< length: T / ranks, width: W / ranks
  DType dtype;

  Swap(const StepContext& of, const View& rows, int64_t sequences)
      : context(&of),
        ranks(of.context_ranks->ranks()),
        batch(sequences),
        length(rows.shape.rows() / sequences),
        width(rows.shape.back() / ranks),
        dtype(rows.dtype) {}

  View blocks() const {
    return allocate(*context->scratch, dtype, {ranks, batch * length * width});
  }
  /// One sequence has the order of blocks.
  View blocks_at(const View& heads) const {
    return batch == 1 ? View{heads.data, dtype, {ranks, length * width}} : blocks();
  }

  /// Copies this part of each piece of the rows into the blocks, or back.
  void copy_pieces(const View& rows, const View& of_blocks, std::span<const int64_t> pieces,
                   bool to_blocks) const {
    int64_t first = 0;
    for (const int64_t piece : pieces) {
      copy_between({at(rows, first), {piece / ranks, length * width * ranks, width * ranks}},
                   {at(of_blocks, first / ranks), block_strides()}, piece / ranks, to_blocks);
      first += piece;
    }
  }

  void copy_positions(const View& of_blocks, const View& heads, bool to_heads) const {
    if (of_blocks.data != heads.data) {
      copy_between({of_blocks.data, block_strides()},
                   {heads.data, {length * width, ranks * length * width, width}}, width, to_heads);
    }
  }

 private:
  std::array<int64_t, 3> block_strides() const {
    return {batch * length * width, length * width, width};
  }
  void copy_between(const ops::RowOrder& a, const ops::RowOrder& b, int64_t count,
                    bool forward) const {
    ops::copy_between(context->stream, a, b,
                      {.dtype = dtype, .extents = {ranks, batch, length}, .width = count}, forward);
  }
};

/// Copies rows of a layer from or to memory of their own, [B, T / ranks, W].
void copy_own(const StepContext& context, const ops::HeadsView& own, const View& rows,
              bool to_rows) {
  const int64_t length = rows.shape[1];
  const int64_t width = rows.shape[2];
  ops::copy_between(
      context.stream, {own.data, {0, own.length_capacity * own.row_stride, own.row_stride}},
      {rows.data, {0, length * width, width}},
      {.dtype = own.dtype, .extents = {1, rows.shape[0], length}, .width = width}, to_rows);
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
      ops::copy_between(
          context.stream,
          {at(of_ranks, rank * batch * own + i * chunk * width), {batch * own, own, width}},
          {at(whole, deal.at(rank, i) * chunk * width),
           {step * chunk * width, length * width, width}},
          {.dtype = whole.dtype, .extents = {count, batch, chunk}, .width = width}, to_whole);
    }
  }
}

}  // namespace

void rows_to_heads(const StepContext& context, const View& rows, const View& heads, int64_t batch,
                   std::span<const int64_t> pieces) {
  ArenaScope scope(*context.scratch);
  const Swap swap(context, rows, batch);
  const View sent = swap.blocks();
  const View received = swap.blocks_at(heads);
  swap.copy_pieces(rows, sent, pieces, true);
  context.context_ranks->swap(context, sent, received);
  swap.copy_positions(received, heads, true);
}

void heads_to_rows(const StepContext& context, const View& heads, const View& rows, int64_t batch,
                   std::span<const int64_t> pieces) {
  ArenaScope scope(*context.scratch);
  const Swap swap(context, rows, batch);
  const View sent = swap.blocks_at(heads);
  const View received = swap.blocks();
  swap.copy_positions(sent, heads, false);
  context.context_ranks->swap(context, sent, received);
  swap.copy_pieces(rows, received, pieces, false);
}

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
