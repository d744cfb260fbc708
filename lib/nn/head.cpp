#include "nn/head.h"

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "ops/loss/cross_entropy.h"

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
      z_loss_(z_loss) {}

void Head::loss(const StepContext& context, ConstView x, ConstView targets,
                const LossTotals& totals, View dx, const GradientScale& scale) const {
  check(!context.training || !dx.empty(), "the head's loss: training needs dx");
  const int64_t rows = x.shape.rows();
  ArenaScope scope(*context.scratch);
  const View losses = totals.of_targets != nullptr ? View{totals.of_targets, DType::f32, {rows}}
                                                   : allocate(*context.scratch, DType::f32, {rows});
  const float z_loss = context.training ? z_loss_ : 0.0F;
  const bool sums_z = z_loss != 0.0F && totals.z_sum != nullptr;
  const View z_losses = sums_z ? allocate(*context.scratch, DType::f32, {rows}) : View{};
  StepContext chunk_context = context;
  chunk_context.amax_is_clear = false;  // with current scaling each chunk has its own
  for (int64_t begin = 0; begin < rows; begin += chunk_rows_) {
    const int64_t count = std::min(chunk_rows_, rows - begin);
    ArenaScope chunk_scope(*context.scratch);
    // A chunk's backward follows at once, so what its forward saves can go too.
    ArenaScope saved_scope(*context.saved);
    const View chunk = allocate(*context.scratch, x.dtype, {count, padded_vocabulary()});
    const View chunk_losses = rows_of(reshaped(losses, {rows, 1}), begin, count);
    const ConstView chunk_targets = rows_of(reshaped(targets, {rows, 1}), begin, count);
    const View chunk_z_losses =
        sums_z ? reshaped(rows_of(reshaped(z_losses, {rows, 1}), begin, count), {count}) : View{};
    Linear::Saved saved;
    projection_.forward(chunk_context, rows_of(x, begin, count), chunk, saved);
    ops::cross_entropy(context.stream, {.logits = chunk,
                                        .targets = reshaped(chunk_targets, {count}),
                                        .losses = reshaped(chunk_losses, {count}),
                                        .z_losses = chunk_z_losses,
                                        .write_gradient = context.training,
                                        .gradient_scale = scale.loss_scale,
                                        .gradient_factor = scale.factor,
                                        .target_share = context.target_share,
                                        .z_loss = z_loss,
                                        .vocabulary = vocabulary_});
    if (context.training) {
      projection_.backward(chunk_context, chunk, rows_of(dx, begin, count), saved);
    }
    chunk_context.overwrites_gradients = false;  // later chunks add
  }
  ops::accumulate_loss(context.stream, losses, targets, totals.sum, totals.count);
  if (sums_z) {
    ops::accumulate_loss(context.stream, z_losses, targets, totals.z_sum, nullptr);
  }
}

void Head::logits(const StepContext& context, ConstView x, View logits) const {
  Linear::Saved unused;
  projection_.forward(context, x, logits, unused);
}

}  // namespace fp8train
