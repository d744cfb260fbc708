#pragma once
// Soft-max cross-entropy on one chunk of logits, in place. Where each rank has some columns of the
// logits, or they are to be summed in parts, it takes two calls: vocabulary_statistics() for each
// part, and cross_entropy() with those of all.

#include "device/stream.h"
#include "tensor/view.h"

namespace fp8train::ops {

/// The arguments of cross_entropy().
struct CrossEntropy {
  View logits;  ///< [rows, V] fp32, bf16 or fp16; becomes d loss / d logits when `write_gradient`
  ConstView targets;  ///< int32 [rows]; negative: ignored (loss 0, gradient 0); beyond the
                      ///< vocabulary: loss NaN
  View losses;        ///< fp32 [rows]: -log p(target)
  View z_losses;      ///< fp32 [rows]: z_loss * log(sum exp)^2 (arXiv 2204.02311); may be empty
  bool write_gradient = true;
  const float* gradient_scale = nullptr;  ///< device scalar, the loss scale; null: 1
  float gradient_factor = 1.0F;  ///< gradients are multiplied by this too: 1 / number of targets
  /// Device scalar that replaces gradient_factor if the number of targets differs from step to
  /// step; null: none.
  const float* target_share = nullptr;
  float z_loss = 0.0F;
  int64_t vocabulary = 0;  ///< columns beyond it are padding: probability 0, gradient 0; 0: all V
  /// fp32 [parts, rows, 3]: the statistics of all parts of the vocabulary, at most kMaxPaired,
  /// which are added in pairs. `vocabulary` is that of all parts then, and targets are out of all
  /// of it. Empty: these logits are the whole rows.
  ConstView statistics;
  int64_t first_column = 0;  ///< of these logits in the vocabulary
};

/// The arguments of vocabulary_statistics(); those of the same names are as in CrossEntropy.
struct VocabularyStatistics {
  ConstView logits, targets;
  int64_t vocabulary = 0;
  int64_t first_column = 0;
  View statistics;  ///< fp32 [parts, rows, 3]: the columns are cut into so many parts of equal size
};

/// Writes for each part and row the largest logit (-infinity if the part is padding), the sum of
/// e^(x - largest), and the target's logit if the part has it, otherwise 0. Of a row whose target
/// is ignored or beyond the vocabulary they are -infinity, 0 and 0.
void vocabulary_statistics(Stream stream, const VocabularyStatistics& call);

/// Writes the losses of all rows and, if asked, replaces the logits by their gradients.
void cross_entropy(Stream stream, const CrossEntropy& call);

/// *accumulator += sum of losses (a fixed order, fp64 inside); *count += number of targets >= 0,
/// unless count is null. Device scalars: double, int64.
void accumulate_loss(Stream stream, ConstView losses, ConstView targets, double* accumulator,
                     int64_t* count);

}  // namespace fp8train::ops
