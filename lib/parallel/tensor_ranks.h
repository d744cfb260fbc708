#pragma once
// The ranks of the tensor axis, or of the context axis, for the layers that they share.

#include "comm/mesh.h"
#include "nn/rank_exchange.h"
#include "ops/exchange/wire.h"
#include "optim/optimizer.h"

namespace fp8train {

/// Exchanges of the layers among the ranks of Group::tensor or Group::context.
class TensorRanks final : public RankExchange {
 public:
  /// The communicator, of at least two ranks, outlives it.
  explicit TensorRanks(Communicator& comm) : comm_(&comm) {}

  int ranks() const override { return comm_->size(); }
  int rank() const override { return comm_->rank(); }
  void gather(const StepContext& context, ConstView part, View whole) override;
  void sum_rows(const StepContext& context, ConstView partial, View own) override;
  void swap(const StepContext& context, ConstView sent, View received) override;
  void largest(const StepContext& context, View magnitudes) override;
  void sum(const StepContext& context, View values) override;

  /// Returns the bytes that these exchanges have sent.
  const Traffic& sent() const { return sent_; }

 private:
  /// Runs an exchange, for which layers wait.
  template <typename Exchange>
  void count(const Exchange& exchange);
  void combine(const StepContext& context, View values, ops::Combine how);

  Communicator* comm_;
  Traffic sent_;
};

/// The ranks of the tensor axis where each has all rows of what lies between layers: there may be
/// one row, of which no rank can have a part. Sums have the bits of those of `ranks`.
class WholeRows final : public RankExchange {
 public:
  /// `ranks` outlives it.
  explicit WholeRows(RankExchange& ranks) : ranks_(&ranks) {}

  /// Returns 1: the number of ranks that share rows.
  int ranks() const override { return 1; }
  int rank() const override { return ranks_->rank(); }
  void gather(const StepContext& context, ConstView part, View whole) override {
    ranks_->gather(context, part, whole);
  }
  void sum_rows(const StepContext& context, ConstView partial, View own) override;
  void swap(const StepContext&, ConstView, View) override {
    check(false, "WholeRows: no layer swaps parts of whole rows");
  }
  void largest(const StepContext& context, View magnitudes) override {
    ranks_->largest(context, magnitudes);
  }
  void sum(const StepContext& context, View values) override { ranks_->sum(context, values); }

 private:
  RankExchange* ranks_;
};

/// Combines values of the ranks that update parts of the same parameters: those of a strategy, and
/// those of the tensor axis.
class TensorCombiner final : public RankCombiner {
 public:
  /// `of_state` may be null; `sums_stage`: it sums over the tensor axis too. All outlive the
  /// combiner.
  TensorCombiner(RankCombiner* of_state, bool sums_stage, TensorRanks& ranks,
                 const StepContext& context)
      : of_state_(of_state), sums_stage_(sums_stage), ranks_(&ranks), context_(&context) {}

  void sum(double* value) override;
  void largest(const View& values) override;
  void largest_of_experts(const View& values) override;
  void gather(const View& part, const View& of_ranks) override {
    ranks_->gather(*context_, part, of_ranks);
  }

 private:
  RankCombiner* of_state_;
  bool sums_stage_;
  TensorRanks* ranks_;
  const StepContext* context_;
};

}  // namespace fp8train
