#pragma once
// The ranks that share each layer, each sequence, or the experts of each layer, as the layer sees
// them: StepContext::tensor_ranks, context_ranks and expert_ranks. All calls are made in one order
// on all of these ranks and are work on the context's stream; memory that they need is taken from
// its scratch arena.

#include "tensor/view.h"

namespace fp8train {

struct StepContext;

class RankExchange {
 public:
  virtual ~RankExchange() = default;

  virtual int ranks() const = 0;
  virtual int rank() const = 0;

  /// whole: [ranks, elements of part], the parts of all ranks in rank order; may contain `part` at
  /// this rank's position.
  virtual void gather(const StepContext& context, ConstView part, View whole) = 0;
  /// own = rows of the sum of all ranks' `partial`, rounded once to its type. partial: fp32 or bf16
  /// [ranks * m, n]; own: [m, n], the rows rank * m .. The sum is made in fp32 and in pairs
  /// (ops::Combine::pairs).
  virtual void sum_rows(const StepContext& context, ConstView partial, View own) = 0;
  /// Block r of `received` is rank r's block of this rank's number. Both: [ranks, elements of a
  /// block], and they do not overlap.
  virtual void swap(const StepContext& context, ConstView sent, View received) = 0;
  /// Replaces fp32 magnitudes by the largest of all ranks; NaN is larger than all.
  virtual void largest(const StepContext& context, View magnitudes) = 0;
  /// Replaces values, fp32 or fp64, by their sums over ranks, made in pairs.
  virtual void sum(const StepContext& context, View values) = 0;
};

}  // namespace fp8train
