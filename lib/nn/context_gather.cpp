#include "nn/context_gather.h"

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

/// Copies [ranks, B, T / ranks, W], the rows of each rank, to [B, T, W], or back.
void copy_chunks(const StepContext& context, const View& of_ranks, const View& whole,
                 bool to_whole) {
  const int64_t ranks = context.context_ranks->ranks();
  const int64_t batch = whole.shape[0];
  const int64_t length = whole.shape[1];
  const int64_t width = whole.shape[2];
  const int64_t chunk = length / ranks / 2;
  const auto first = chunks_of_rank(0, ranks);
  const auto second = chunks_of_rank(1, ranks);
  for (size_t i = 0; i < first.size(); ++i) {
    void* const rows = at(of_ranks, static_cast<int64_t>(i) * chunk * width);
    void* const positions = at(whole, first[i] * chunk * width);
    const std::array<int64_t, 3> of_rows = {batch * 2 * chunk * width, 2 * chunk * width, width};
    const std::array<int64_t, 3> of_positions = {(second[i] - first[i]) * chunk * width,
                                                 length * width, width};
    ops::copy_rows(context.stream, {.from = to_whole ? rows : positions,
                                    .to = to_whole ? positions : rows,
                                    .dtype = whole.dtype,
                                    .extents = {ranks, batch, chunk},
                                    .width = width,
                                    .from_strides = to_whole ? of_rows : of_positions,
                                    .to_strides = to_whole ? of_positions : of_rows});
  }
}

}  // namespace

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
