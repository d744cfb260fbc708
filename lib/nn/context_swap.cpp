#include "nn/context_swap.h"

#include <array>

#include "ops/attention/copy_rows.h"
#include "tensor/tensor.h"

namespace fp8train {
namespace {

/// Rows, the blocks that ranks swap, [ranks, B, T / ranks, W / ranks], and heads.
struct Swap {
  /// Memory in one of the three orders; strides of ranks, sequences and positions.
  struct Order {
    void* data;
    std::array<int64_t, 3> strides;
  };

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
      copy({at(rows, first), {piece / ranks, length * width * ranks, width * ranks}},
           {at(of_blocks, first / ranks), block_strides()}, piece / ranks, to_blocks);
      first += piece;
    }
  }

  void copy_positions(const View& of_blocks, const View& heads, bool to_heads) const {
    if (of_blocks.data != heads.data) {
      copy({of_blocks.data, block_strides()},
           {heads.data, {length * width, ranks * length * width, width}}, width, to_heads);
    }
  }

 private:
  std::array<int64_t, 3> block_strides() const {
    return {batch * length * width, length * width, width};
  }
  void* at(const View& view, int64_t element) const {
    return view.as<char>() + static_cast<size_t>(element) * size_of(dtype);
  }
  void copy(const Order& a, const Order& b, int64_t count, bool forward) const {
    const Order& from = forward ? a : b;
    const Order& to = forward ? b : a;
    ops::copy_rows(context->stream, {.from = from.data,
                                     .to = to.data,
                                     .dtype = dtype,
                                     .extents = {ranks, batch, length},
                                     .width = count,
                                     .from_strides = from.strides,
                                     .to_strides = to.strides});
  }
};

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

}  // namespace fp8train
