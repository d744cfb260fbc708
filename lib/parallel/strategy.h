#pragma once
// How the work of training is laid over ranks. A Strategy lays out the parameters, exchanges
// gradients while backward runs, and gathers values after the update; the engine calls it at fixed
// points of a step and knows nothing else about it. The class itself is that of one rank. One file
// each: whole replicas (data_parallel.cpp), the same with an optimizer shared by whole parameters
// (whole_parameters.cpp), shared optimizer and parameters (zero.cpp). A further one is a file with
// a class, its line in the table of strategy.cpp and what it reads of parallel/settings.h.

#include <functional>
#include <memory>
#include <string>

#include "base/not_copied.h"
#include "comm/mesh.h"
#include "device/device.h"
#include "nn/context.h"
#include "nn/parameter.h"
#include "optim/optimizer.h"
#include "parallel/settings.h"

namespace fp8train {

/// The model, the ranks and the settings that a strategy is made for.
struct StrategySite {
  Mesh mesh;
  StrategySettings settings;
  bool trains = true;            ///< false: no gradients, no optimizer
  bool accumulates = false;      ///< several micro-batches add to a gradient before it is exchanged
  bool ties_embeddings = false;  ///< whether the head reads the parameters of the embedding
  bool self_exact = false;       ///< PrecisionPlan::self_exact
  double (*whole_cost)(const Parameter& parameter) = nullptr;  ///< OptimizerEntry::whole_cost

  /// Returns how many ranks share one copy of what ZeRO cuts. Throws ConfigError if groups of so
  /// many ranks do not divide the ranks.
  int shard_ranks() const;
  /// Returns the ranks that have parts of the same tensors (GradientBucket::scale_ranks).
  Communicator* scale_ranks() const {
    return mesh.size(Axis::tensor) > 1 ? mesh.group(Group::stage) : nullptr;
  }
  /// Whether StrategySettings::sync_each_batch has an effect.
  bool adds_shards() const {
    return accumulates && settings.sync_each_batch && settings.zero_stage >= 2;
  }
};

/// The base class is the strategy of one rank: nothing is exchanged, and a step can be recorded.
class Strategy : NotCopied {
 public:
  explicit Strategy(const StrategySite& site) : site_(site) {}
  virtual ~Strategy() = default;

  const Mesh& mesh() const { return site_.mesh; }

  // While an engine is built, in this order.

  /// Called before parameters are allocated. Returns how ranks share them.
  virtual StoreSharing sharing() const { return {}; }
  /// After that, and before all that follows. Collective. `device` and `parameters` outlive the
  /// strategy; `amax`: the most values that combine_amax() will get. Throws ConfigError when
  /// gradients of the plan cannot cross as its wire says.
  virtual void attach(Device& device, ParameterStore& parameters, const View& /*amax*/) {
    device_ = &device;
    parameters_ = &parameters;
  }
  /// Whether each gradient is rounded to its wire's format on its way between ranks. Otherwise the
  /// optimizer does that (Optimizer::set_rounds_gradients).
  virtual bool rounds_gradients() const { return false; }
  /// Whether a step can be recorded and replayed: nothing of it goes through the host.
  virtual bool can_be_recorded() const { return true; }

  // A training step, in this order.

  /// Whether gradients are exchanged in each micro-batch: each then overwrites them.
  bool exchanges_each() const { return mesh().size(Group::state) > 1 && site_.adds_shards(); }
  /// Called before the backward pass of the `last` micro-batch or, with exchanges_each(), of every
  /// one. Returns the listener to which that pass reports completed gradients, or null.
  virtual GradientListener* begin_exchange(bool /*last*/) { return nullptr; }
  /// Called after the last pass. Waits until the gradients that this rank updates are sums over
  /// ranks. Replicas also replace `squared_norm` (Optimizer::squared_norm) by its sum over ranks,
  /// so that a NaN of one rank reaches all; else the optimizer does that by the combiner().
  virtual void finish_exchange(double* /*squared_norm*/) {}
  /// Returns the combiner for an optimizer that updates parts of parameters, or of which ranks have
  /// different ones; null if it updates all.
  virtual RankCombiner* combiner() { return nullptr; }
  /// Called after the update. Gets the new values of parameters from the ranks that updated them.
  virtual void share_values() {}
  /// Called after updates and after values were set: gathered values are out of date from then on.
  virtual void values_changed() {}

  // Between ranks, at any time.

  /// Replaces fp32 magnitudes by the largest of all ranks.
  virtual void combine_amax(Stream /*stream*/, const View& /*values*/) {}
  /// Returns the gatherer of values for a pass, or null if values are where layers read them.
  virtual ParameterGatherer* gatherer() { return nullptr; }

  // Between steps.

  /// Calls a function with each parameter and what ranks hold alike of it: its value or,
  /// if ranks share its parts, its gathered form. It is then collective, and gathered values are
  /// out of date afterwards.
  virtual void for_each_replica(const std::function<void(const Parameter&, const Encoded&)>& use);

 protected:
  const StrategySite& site() const { return site_; }
  Device& device() const { return *device_; }
  ParameterStore& parameters() const { return *parameters_; }

 private:
  StrategySite site_;
  Device* device_ = nullptr;
  ParameterStore* parameters_ = nullptr;
};

/// Makes the first strategy of the table that serves the site.
std::unique_ptr<Strategy> make_strategy(const StrategySite& site);
/// Returns the name of the strategy for messages: "one rank", "DDP", "ZeRO 2". The mesh needs no
/// communicator.
std::string strategy_name(const StrategySite& site);

}  // namespace fp8train
