#pragma once
// Functions that make the strategy of each file, for the table of strategy.cpp, and code that the
// strategies of several ranks have in common.

#include <memory>
#include <optional>

#include "parallel/gradient_buckets.h"
#include "parallel/strategy.h"

namespace fp8train {

/// Makes DDP: every rank updates all parameters.
std::unique_ptr<Strategy> make_data_parallel(const StrategySite& site);
/// Makes ZeRO 1 by whole parameters: each parameter is updated by one rank, which sends the new
/// value to the others.
std::unique_ptr<Strategy> make_whole_parameters(const StrategySite& site);
/// Makes ZeRO 1, 2 or 3 as StrategySite says: ranks share segments of flat parameters.
std::unique_ptr<Strategy> make_zero(const StrategySite& site);

/// The base class for several ranks. It combines a few values of each rank, through memory that
/// attach() allocates.
class RankedStrategy : public Strategy, protected RankCombiner {
 public:
  using Strategy::Strategy;

  // The defaults of Strategy suit one rank only, so each class for several ranks overrides these.
  StoreSharing sharing() const override = 0;
  GradientListener* begin_exchange(bool last) override = 0;
  void finish_exchange(double* squared_norm) override = 0;
  RankCombiner* combiner() override = 0;
  void values_changed() override = 0;
  ParameterGatherer* gatherer() override = 0;

  void attach(Device& device, ParameterStore& parameters, const View& amax) override;
  bool rounds_gradients() const override { return true; }
  bool can_be_recorded() const override { return false; }  // ranks wait for each other on the host
  void combine_amax(Stream stream, const View& values) override;

 protected:
  Communicator& comm() const { return *mesh().group(Group::state); }
  /// The ranks that share the experts of this one; null: all ranks share all parameters.
  Communicator* expert_comm() const {
    return mesh().size(Group::expert) == 1 ? nullptr
           : alone_ == nullptr             ? mesh().group(Group::expert_state)
                                           : alone_.get();
  }
  /// The ranks that share one copy of all parameters but those of experts.
  virtual Communicator& sharing_ranks() const { return comm(); }
  /// The ranks that update different parts or parameters; with different experts all of the stage,
  /// of which each counts what it alone has.
  virtual Communicator& counting_ranks() const {
    return mesh().size(Group::expert) == 1 ? sharing_ranks() : *mesh().group(Group::stage);
  }
  void* combine_scratch() const { return combined_.data(); }

  void sum(double* value) override;
  void largest(const View& values) override;

 private:
  Buffer combined_;                      ///< a few values of every rank
  std::unique_ptr<Communicator> alone_;  ///< of this rank, which shares its experts with none
};

/// Data parallelism (DDP): every rank has all parameters and works on batches of its own; gradients
/// are summed over the ranks while backward still runs. It also serves an evaluation by several
/// ranks, which exchanges no gradients.
class Replicas : public RankedStrategy {
 public:
  using RankedStrategy::RankedStrategy;

  StoreSharing sharing() const override { return {.exchanged = true, .shards = {}, .owners = {}}; }
  void attach(Device& device, ParameterStore& parameters, const View& amax) override;
  GradientListener* begin_exchange(bool last) override;
  void finish_exchange(double* squared_norm) override;
  RankCombiner* combiner() override { return mesh().size(Group::expert) == 1 ? nullptr : this; }
  bool of_parts() const override { return false; }
  void values_changed() override {}
  ParameterGatherer* gatherer() override { return nullptr; }

 private:
  std::optional<GradientBuckets> gradients_;
};

}  // namespace fp8train
