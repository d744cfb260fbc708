#include "parallel/tensor_ranks.h"

#include "base/error.h"
#include "comm/exchange/reduce.h"
#include "nn/context.h"
#include "ops/exchange/wire.h"
#include "ops/pointwise/elementwise.h"
#include "tensor/tensor.h"

namespace fp8train {

void TensorRanks::gather(const StepContext& context, ConstView part, View whole) {
  check(whole.bytes() == part.bytes() * static_cast<size_t>(ranks()), "ranks gather equal parts");
  comm_->all_gather(context.stream, part.data, whole.data, part.bytes()).wait();
}

void TensorRanks::sum_rows(const StepContext& context, ConstView partial, View own) {
  check(partial.dtype == DType::f32 && partial.count() == own.count() * ranks(),
        "sum_rows: each rank has an fp32 value of each row of all ranks");
  ArenaScope scope(*context.scratch);
  const View received = allocate(*context.scratch, DType::f32, {ranks(), own.count()});
  const View sum = own.dtype == DType::f32 ? reshaped(own, {own.count()})
                                           : allocate(*context.scratch, DType::f32, {own.count()});
  const size_t bytes = sum.bytes();
  comm_->all_to_all(context.stream, partial.data, received.data, bytes).wait();
  ops::combine_ranks(context.stream, received, ops::Combine::pairs, sum);
  if (sum.data != own.data) {
    ops::cast(context.stream, sum, reshaped(own, {own.count()}));
  }
}

void TensorRanks::combine(const StepContext& context, View values, ops::Combine how) {
  ArenaScope scope(*context.scratch);
  const View received = allocate(*context.scratch, values.dtype, {ranks(), values.count()});
  all_combine(*comm_, context.stream, values, how, received.data);
}

void TensorRanks::largest(const StepContext& context, View magnitudes) {
  combine(context, magnitudes, ops::Combine::max);
}

void TensorRanks::sum(const StepContext& context, View values) {
  combine(context, values, ops::Combine::pairs);
}

}  // namespace fp8train
