#pragma once
// The ranks of the tensor axis where each has all rows of what lies between layers: there may be
// one row, of which no rank can have a part.

#include "nn/rank_exchange.h"

namespace fp8train {

/// Sums have the bits of those of `ranks`, and all rows.
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
  void swap(const StepContext& context, ConstView sent, View received) override {
    ranks_->swap(context, sent, received);
  }
  void largest(const StepContext& context, View magnitudes) override {
    ranks_->largest(context, magnitudes);
  }
  void sum(const StepContext& context, View values) override { ranks_->sum(context, values); }

 private:
  RankExchange* ranks_;
};

}  // namespace fp8train
