#include "nn/head.h"

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "ops/attention/copy_rows.h"
#include "ops/loss/cross_entropy.h"
#include "ops/pointwise/elementwise.h"

namespace fp8train {
namespace {

constexpr int64_t kChunkElements = int64_t{32} << 20;
constexpr size_t kMemoryShare = 128;
constexpr int64_t kRowMultiple = 16;

}  // namespace

int64_t head_chunk_rows(size_t device_memory, int64_t padded_vocabulary, DType logits) {
  if (device_memory == 0) {
    return std::max(kRowMultiple, kChunkElements / padded_vocabulary / kRowMultiple * kRowMultiple);
  }
  const size_t row = static_cast<size_t>(padded_vocabulary) * size_of(logits);
  const uint64_t rows = std::bit_floor(uint64_t{device_memory / kMemoryShare / row});
  return std::max(kRowMultiple, static_cast<int64_t>(rows));
}

Head::Head(Linear projection, int64_t vocabulary, int64_t chunk_rows, float z_loss)
    : projection_(std::move(projection)),
      vocabulary_(vocabulary),
      chunk_rows_(chunk_rows),
      z_loss_(z_loss) {
  const Parameter& weight = projection_.weight().parameter();
  padded_vocabulary_ = weight.sharding.whole[0];
  first_column_ = weight.sharding.runs.front().begin;
  columns_ = weight.shape[0];
}

View Head::make_statistics(const StepContext& context, ConstView logits, ConstView targets) const {
  RankExchange* const ranks = context.tensor_ranks;
  const int64_t parts = context.tensor_parts;
  if (ranks == nullptr && parts == 1) {
    return {};
  }
  const int64_t rows = parts * targets.count();
  const int64_t all = ranks == nullptr ? 1 : ranks->ranks();
  const View whole = allocate(*context.scratch, DType::f32, {all * rows, 3});
  const View own = rows_of(whole, ranks == nullptr ? 0 : ranks->rank() * rows, rows);
  ops::vocabulary_statistics(context.stream, {.logits = logits,
                                              .targets = targets,
                                              .vocabulary = vocabulary_,
                                              .first_column = first_column_,
                                              .statistics = own});
  if (ranks != nullptr) {
    ranks->gather(context, own, whole);
  }
  return whole;
}

void Head::run_chunk(const StepContext& context, const Chunk& chunk,
                     const GradientScale& scale) const {
  ArenaScope chunk_scope(*context.scratch);
  // A chunk's backward follows at once, so what its forward saves can go too.
  ArenaScope saved_scope(*context.saved);
  const View logits = allocate(*context.scratch, chunk.x.dtype, {chunk.x.shape.rows(), columns_});
  Linear::Saved saved;
  projection_.forward(context, chunk.x, logits, saved);
  ops::cross_entropy(context.stream, {.logits = logits,
                                      .targets = chunk.targets,
                                      .losses = chunk.losses,
                                      .z_losses = chunk.z_losses,
                                      .write_gradient = context.training,
                                      .gradient_scale = scale.loss_scale,
                                      .gradient_factor = scale.factor,
                                      .target_share = context.target_share,
                                      .z_loss = context.training ? z_loss_ : 0.0F,
                                      .vocabulary = vocabulary_,
                                      .statistics = make_statistics(context, logits, chunk.targets),
                                      .first_column = first_column_});
  if (context.training) {
    projection_.backward(context, logits, chunk.dx, saved);
  }
}

void Head::loss(const StepContext& context, ConstView x, ConstView targets,
                const LossTotals& totals, View dx, const GradientScale& scale) const {
  check(!context.training || !dx.empty(), "the head's loss: training needs dx");
  RankExchange* const ranks = context.tensor_ranks;
  const int64_t rows = targets.count();
  ArenaScope scope(*context.scratch);
  const View losses = totals.of_targets != nullptr ? View{totals.of_targets, DType::f32, {rows}}
                                                   : allocate(*context.scratch, DType::f32, {rows});
  const bool sums_z = context.training && z_loss_ != 0.0F && totals.z_sum != nullptr;
  const View z_losses = sums_z ? allocate(*context.scratch, DType::f32, {rows}) : View{};
  View partial = dx;  // of all rows
  if (ranks != nullptr) {
    const View whole = allocate(*context.scratch, x.dtype, {rows, x.shape.back()});
    ranks->gather(context, x, whole);
    x = whole;
  }
  if (context.divides_sums() && context.training) {
    partial = allocate(*context.scratch, context.partial_type(dx.dtype), x.shape);
  }
  StepContext chunk_context = context;
  chunk_context.amax_is_clear = false;  // with current scaling each chunk has its own
  for (int64_t begin = 0; begin < rows; begin += chunk_rows_) {
    const int64_t count = std::min(chunk_rows_, rows - begin);
    const auto part = [&](const auto& of_rows) {
      return of_rows.empty()
                 ? of_rows
                 : reshaped(rows_of(reshaped(of_rows, {rows, 1}), begin, count), {count});
    };
    run_chunk(chunk_context,
              {.x = rows_of(x, begin, count),
               .targets = part(targets),
               .losses = part(losses),
               .z_losses = part(z_losses),
               .dx = context.training ? rows_of(partial, begin, count) : View{}},
              scale);
    chunk_context.overwrites_gradients = false;  // later chunks add
  }
  if (ranks != nullptr && context.training) {
    ranks->sum_rows(context, partial, dx);
  } else if (partial.data != dx.data) {
    ops::cast(context.stream, partial, dx);
  }
  if (ranks != nullptr && ranks->rank() > 0) {
    return;
  }
  ops::accumulate_loss(context.stream, losses, targets, totals.sum, totals.count);
  if (sums_z) {
    ops::accumulate_loss(context.stream, z_losses, targets, totals.z_sum, nullptr);
  }
}

void Head::logits(const StepContext& context, ConstView x, View logits) const {
  Linear::Saved unused;
  if (context.tensor_ranks == nullptr) {
    return projection_.forward(context, x, logits, unused);
  }
  ArenaScope scope(*context.scratch);
  const int64_t rows = x.shape.rows();
  const int64_t ranks = padded_vocabulary_ / columns_;
  const View parts = allocate(*context.scratch, logits.dtype, {ranks * rows, columns_});
  const View own = rows_of(parts, first_column_ / columns_ * rows, rows);
  projection_.forward(context, x, own, unused);
  context.tensor_ranks->gather(context, own, parts);
  ops::copy_rows(context.stream, {.from = parts.data,
                                  .to = logits.data,
                                  .dtype = logits.dtype,
                                  .extents = {1, rows, ranks},
                                  .width = columns_,
                                  .from_strides = {0, columns_, rows * columns_},
                                  .to_strides = {0, padded_vocabulary_, columns_}});
}

}  // namespace fp8train
