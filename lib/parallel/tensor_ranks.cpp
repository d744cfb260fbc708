#include "parallel/tensor_ranks.h"

#include "base/error.h"
#include "comm/exchange/reduce.h"
#include "nn/context.h"
#include "ops/exchange/wire.h"

namespace fp8train {

template <typename Exchange>
void TensorRanks::count(const Exchange& exchange) {
  const Traffic before = comm_->traffic();
  exchange();
  sent_.within_node += comm_->traffic().within_node - before.within_node;
  sent_.between_nodes += comm_->traffic().between_nodes - before.between_nodes;
}

void TensorRanks::gather(const StepContext& context, ConstView part, View whole) {
  check(whole.bytes() == part.bytes() * static_cast<size_t>(ranks()), "ranks gather equal parts");
  count([&] { comm_->all_gather(context.stream, part.data, whole.data, part.bytes()).wait(); });
}

void TensorRanks::sum_rows(const StepContext& context, ConstView partial, View own) {
  check(partial.count() == own.count() * ranks(),
        "sum_rows: each rank has a value of each row of all ranks");
  ArenaScope scope(*context.scratch);
  const View received = allocate(*context.scratch, partial.dtype, {ranks(), own.count()});
  const size_t bytes = partial.bytes() / static_cast<size_t>(ranks());
  count([&] { comm_->all_to_all(context.stream, partial.data, received.data, bytes).wait(); });
  ops::combine_ranks(context.stream, received, ops::Combine::pairs, own);
}

void TensorRanks::swap(const StepContext& context, ConstView sent, View received) {
  check(sent.bytes() == received.bytes(), "ranks swap equal blocks");
  const size_t bytes = sent.bytes() / static_cast<size_t>(ranks());
  count([&] { comm_->all_to_all(context.stream, sent.data, received.data, bytes).wait(); });
}

void TensorRanks::combine(const StepContext& context, View values, ops::Combine how) {
  ArenaScope scope(*context.scratch);
  const View received = allocate(*context.scratch, values.dtype, {ranks(), values.count()});
  count([&] { all_combine(*comm_, context.stream, values, how, received.data); });
}

void TensorRanks::largest(const StepContext& context, View magnitudes) {
  combine(context, magnitudes, ops::Combine::max);
}

void TensorRanks::sum(const StepContext& context, View values) {
  combine(context, values, ops::Combine::pairs);
}

void WholeRows::sum_rows(const StepContext& context, ConstView partial, View own) {
  ArenaScope scope(*context.scratch);
  const View parts = allocate(*context.scratch, partial.dtype, {ranks_->ranks(), partial.count()});
  ranks_->gather(context, partial, parts);
  ops::combine_ranks(context.stream, parts, ops::Combine::pairs, own);
}

void TensorCombiner::sum(double* value) {
  if (of_state_ != nullptr) {
    of_state_->sum(value);
  }
  if (!sums_stage_) {
    ranks_->sum(*context_, {value, DType::f64, {1}});
  }
}

void TensorCombiner::largest(const View& values) {
  if (of_state_ != nullptr && of_state_->of_parts()) {
    of_state_->largest(values);
  }
  ranks_->largest(*context_, values);
}

void TensorCombiner::largest_of_experts(const View& values) {
  if (of_state_ != nullptr && of_state_->of_parts()) {
    of_state_->largest_of_experts(values);
  }
}

}  // namespace fp8train
