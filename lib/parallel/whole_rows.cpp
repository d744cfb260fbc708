#include "parallel/whole_rows.h"

#include "nn/context.h"
#include "ops/exchange/wire.h"
#include "tensor/tensor.h"

namespace fp8train {

void WholeRows::sum_rows(const StepContext& context, ConstView partial, View own) {
  ArenaScope scope(*context.scratch);
  const View parts = allocate(*context.scratch, partial.dtype, {ranks_->ranks(), partial.count()});
  ranks_->gather(context, partial, parts);
  ops::combine_ranks(context.stream, parts, ops::Combine::pairs, own);
}

}  // namespace fp8train
