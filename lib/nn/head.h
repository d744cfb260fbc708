#pragma once
// The output head with its loss. Logits exist for one chunk of rows at a time: forward, soft-max
// cross-entropy, dgrad and wgrad of a chunk run before the next chunk, so the full logits never
// exist. Each chunk reads the weight twice and its fp32 gradient once, and wgrad contracts the rows
// of a chunk: on a GPU chunks are as large as its memory allows. With another number of rows in a
// chunk wgrad sums rows in another order, and the weight's gradient has other bits. The weight
// belongs to a parameter store; chunks are in the arenas of the context, and all work is
// asynchronous on its stream.

#include <cstdint>

#include "nn/linear.h"

namespace fp8train {

/// Device scalars of a step's loss.
struct LossTotals {
  double* sum;     ///< += cross entropy of every target
  int64_t* count;  ///< += number of targets
  float* of_targets =
      nullptr;  ///< [rows]: the loss of each target, 0 where it is ignored; null: not asked for
  double* z_sum = nullptr;  ///< += z-loss of every target, in training; null: not asked for
};

/// Rows of logits that exist at a time where no setting says how many. On a GPU the largest power
/// of two whose logits take at most 1/128 of its memory (4096 for bf16, 128256 tokens and an H200);
/// elsewhere the largest multiple of 16 whose logits have at most 32 Mi elements. 16 or more: a
/// function of the device's memory (DeviceTraits::memory) and the model alone.
int64_t head_chunk_rows(size_t device_memory, int64_t padded_vocabulary, DType logits);

/// Gradients are multiplied by *loss_scale * factor.
struct GradientScale {
  const float* loss_scale = nullptr;  ///< device memory; null: 1
  float factor = 1.0F;
};

/// The last layer of a model and its loss, in chunks of rows: logits never exist as a whole.
class Head {
 public:
  /// `chunk_rows` is at least 1.
  Head(Linear projection, int64_t vocabulary, int64_t chunk_rows, float z_loss);

  Linear& projection() { return projection_; }

  /// x: [rows, C]; targets: int32 [rows], negative = ignored. Adds to the totals. In
  /// training also overwrites dx, [rows, C], with the gradient of x and adds
  /// to the weight's gradient (or overwrites it: StepContext::overwrites_gradients), both
  /// multiplied by `scale`. Throws InternalError if training has no dx. If context.target_share is
  /// set, it replaces scale.factor.
  void loss(const StepContext& context, ConstView x, ConstView targets, const LossTotals& totals,
            View dx = {}, const GradientScale& scale = {}) const;

  /// x: [rows, C]. Overwrites `logits`, [rows, padded vocabulary], all at once: for the few rows of
  /// generation.
  void logits(const StepContext& context, ConstView x, View logits) const;

  int64_t padded_vocabulary() const { return projection_.plan().site.out_features; }

 private:
  Linear projection_;
  int64_t vocabulary_;
  int64_t chunk_rows_;
  float z_loss_;
};

}  // namespace fp8train
