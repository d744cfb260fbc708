#pragma once
// The output head with its loss. Logits exist for one chunk of rows at a time: forward, soft-max
// cross-entropy, dgrad and wgrad of a chunk run before the next chunk, so the full logits never
// exist. Each chunk reads the weight twice and its fp32 gradient once, and wgrad contracts the rows
// of a chunk: on a GPU chunks are as large as its memory allows. With another number of rows in a
// chunk wgrad sums rows in another order, and the weight's gradient has other bits. The weight
// belongs to a parameter store; chunks are in the arenas of the context, and all work is
// asynchronous on its stream.
//
// Each tensor rank has some rows of the vocabulary's weight and of x. It gathers x, makes its
// columns of the logits of all rows, and exchanges 12 bytes of statistics for each row; the
// gradients of x that the ranks make are added at the end.

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

/// The last layer of a model and its loss, in chunks of rows: logits never exist as a whole.
class Head {
 public:
  /// `chunk_rows` is at least 1.
  Head(Linear projection, int64_t vocabulary, int64_t chunk_rows, float z_loss);

  Linear& projection() { return projection_; }

  /// x: [rows, C], of which a tensor rank has its part; targets: int32 [rows], negative = ignored.
  /// Adds to the totals; of tensor ranks the first does. In training also overwrites dx, as x, with
  /// the gradient of x and adds to the weight's gradient (or overwrites it:
  /// StepContext::overwrites_gradients), both multiplied by `scale`. Throws InternalError if
  /// training has no dx. If context.target_share is set, it replaces scale.factor.
  void loss(const StepContext& context, ConstView x, ConstView targets, const LossTotals& totals,
            View dx = {}, const GradientScale& scale = {}) const;

  /// x: [rows, C]. Overwrites `logits`, [rows, padded vocabulary], all at once: for the few rows of
  /// generation. Tensor ranks all have x, of one row, and get all logits.
  void logits(const StepContext& context, ConstView x, View logits) const;

  int64_t padded_vocabulary() const { return padded_vocabulary_; }

 private:
  /// Some rows, whose logits exist at a time.
  struct Chunk {
    ConstView x, targets;
    View losses, z_losses, dx;
  };
  void run_chunk(const StepContext& context, const Chunk& chunk, const GradientScale& scale) const;
  /// Returns the statistics of all parts of a chunk's logits, for ops::CrossEntropy; empty if
  /// there is one part.
  View make_statistics(const StepContext& context, ConstView logits, ConstView targets) const;

  Linear projection_;
  int64_t padded_vocabulary_;
  int64_t first_column_, columns_;  // of the logits that this rank makes
  int64_t vocabulary_;
  int64_t chunk_rows_;
  float z_loss_;
};

}  // namespace fp8train
