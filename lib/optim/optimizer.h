#pragma once
// One optimizer step over a parameter store: the gradients' global norm, clipping, skipping of
// non-finite steps, the update itself and the GEMM copies of the new weights. Everything is decided
// on the device; the host reads its ops::StepControl once per logging interval.
//
// The base class does the work that all optimizers have in common. A further optimizer is one file:
// a class that defines its states by name and updates one parameter, and an OptimizerEntry
// (registry.h).

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/arena.h"
#include "nn/parameter.h"
#include "ops/optimizer/optimizer.h"
#include "optim/settings.h"

namespace fp8train {

/// How values of several ranks become one, in place: for an optimizer that updates parts of
/// parameters (Parameter::updated).
class RankCombiner {
 public:
  virtual ~RankCombiner() = default;
  /// Replaces one fp64 value by its sum over ranks.
  virtual void sum(double* value) = 0;
  /// Replaces fp32 magnitudes by the largest of all ranks, one by one; NaN is larger than all.
  virtual void largest(const View& values) = 0;
  /// The same over the ranks that share parameters with Parameter::of_experts().
  virtual void largest_of_experts(const View& values) { largest(values); }
  /// Gets of_ranks: [ranks, part], fp32, where ranks have parts of a matrix: those of Axis::tensor.
  /// `part` lies in it, at this rank's position. Throws InternalError unless it is overridden.
  virtual void gather(const View& part, const View& of_ranks);
  /// False: ranks update whole parameters, and have in common the norm alone.
  virtual bool of_parts() const { return true; }
};

/// A state that an optimizer stores for some parameters from step to step, under one name. Owns its
/// memory. Checkpoints have it as "NAME.PARAMETER".
class OptimizerState {
 public:
  explicit OptimizerState(std::string name) : name_(std::move(name)) {}

  /// Adds the state of parameter `index` of the store, in this format and in the shape of the part
  /// that this rank updates; none if it is not trained. Must be called before allocate().
  void add(size_t index, const TensorFormat& format, const Parameter& parameter);
  /// Allocates the states and sets them to zero.
  void allocate(Device& device) { pool_.allocate(device); }

  const std::string& name() const { return name_; }
  /// Returns the state of a parameter, empty if it has none.
  Encoded of(size_t index) const;
  /// Returns the scales of tensors that have one scale each, [tensors, 2] per buffer; `of_experts`
  /// is as in StoreShards.
  std::vector<View> tensor_scales(bool of_experts) const {
    return pool_.tensor_scales(of_experts ? 1 : 0);
  }

 private:
  std::string name_;
  StoredPool pool_;
  std::vector<std::optional<size_t>> position_;  ///< position of each parameter in the pool
};

/// The settings, parameters and device of an optimizer. `device` and `parameters`, which are
/// allocated, outlive it.
struct OptimizerSite {
  Device* device;
  ParameterStore* parameters;
  OptimizerSettings settings;
  bool dynamic_loss_scaling = false;
  uint64_t seed = 0;  ///< seed of stochastic rounding
};

/// Updates the parameters of a store by their gradients.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Zeroes the gradients in the store's own memory, but for those that the first micro-batch
  /// overwrites (Parameter::overwritten). Called before the first micro-batch of a step.
  void clear_gradients(Stream stream);

  /// Sets the learning rate of the steps from now on. It is stored on the device, so that a
  /// recorded step can be replayed.
  virtual void set_learning_rate(double lr);

  /// Makes step() round the gradients once to the formats of their wires, so that the result of one
  /// rank is that of several. Only where no state axis exchanges gradients.
  void set_rounds_gradients(bool rounds) { rounds_gradients_ = rounds; }

  /// Applies the accumulated gradients, unless their norm is not finite, and casts the new weights
  /// as their Parameter::cast says; with statistics only when `collect_statistics`. `combiner` is
  /// set if ranks update parts of parameters. fp32 gradients whose wire is bf16 may be rounded
  /// where they are read and stay in memory as they are; others are rounded in place.
  void step(Stream stream, Arena& scratch, bool collect_statistics = false,
            RankCombiner* combiner = nullptr);

  /// Makes the copies and casts that the update of a value makes. Called after step(), once other
  /// ranks have sent the values that they updated (Parameter::Updated::elsewhere).
  void receive(Stream stream, Arena& scratch, bool collect_statistics);

  /// Sets the factors of automatic scales, after step() of several ranks, by the counts of all.
  /// `of_ranks`: `scales`, which are ParameterStore::automatic_scales(), of each rank in rank
  /// order, in device memory.
  void update_sum_scales(Stream stream, std::span<const ops::AutoScale> of_ranks,
                         std::span<ops::AutoScale> scales) const;

  /// Returns the device scalar by which losses are multiplied before backward (1 without loss
  /// scaling).
  const float* loss_scale() const;

  /// Returns the device scalar in which step() sums the squared norm. It is 0 between steps; NaN in
  /// it makes the next step a skipped one.
  double* squared_norm() const { return &device_control()->squared_norm; }
  /// Returns the device scalar that is not 0 where the step that has just run is a skipped one.
  const int32_t* skip() const { return &device_control()->skip; }

  /// Returns the loss scale with which a new run starts.
  float initial_loss_scale() const;

  /// Returns the states in the order in which checkpoints store them.
  virtual std::vector<const OptimizerState*> states() const = 0;
  /// Returns the state of a parameter, or of the part of it that this rank updates. Empty if there
  /// is no such state.
  Encoded state(std::string_view name, size_t parameter) const;
  /// Returns the results of the last step and the start of the next one. Waits for the device.
  ops::StepControl control() const;
  /// Sets the control block, as when a run continues from a checkpoint.
  void set_control(const ops::StepControl& control);

 protected:
  struct Update {
    Stream stream;
    Arena* scratch;
    bool collect_statistics = false;
    RankCombiner* combiner = nullptr;  ///< as in step()
  };

  explicit Optimizer(const OptimizerSite& site);

  /// Called once per step, when the control block says how to clip and whether to skip.
  virtual void begin_update(const Update& /*step*/) {}
  /// Says which of two further tasks an update has done; the base class does the other ones. Both
  /// are done in a step that is skipped too: it changes neither weight nor state, but a scale may
  /// have moved.
  struct Done {
    bool copied = false;  ///< the new value to Parameter::copy
    bool cast = false;    ///< cast as Parameter::cast says
  };
  /// Updates one trained parameter of the store: its weight and its states.
  virtual Done update(const Update& step, size_t index) = 0;
  /// Called before the updates if ranks update parts and any tensor has one scale. Writes the amax
  /// of the new values of this rank's parts next to each scale of a whole tensor
  /// (ParameterStore::tensor_scales, OptimizerState::tensor_scales). The ranks then find the
  /// largest. Throws InternalError unless it is overridden: scales of the parts alone would differ
  /// between ranks.
  virtual void find_amax(Stream stream);
  /// Whether the updates of this step find the amax of whole tensors next to their scales.
  bool amax_is_known() const { return amax_is_known_; }
  /// Whether update() rounds fp32 gradients whose wire is bf16 as it reads them (read_as()).
  virtual bool rounds_as_it_reads() const { return false; }

  /// Returns the type to which gradients of a format are rounded as they are read; fp32: they are
  /// not.
  DType read_as(const TensorFormat& gradient, const TensorFormat& wire) const;
  /// Adds the sum of x^2 to *sum, a device scalar. `read_as` is that of ops::sum_of_squares.
  static void add_squares(Stream stream, Arena& scratch, const View& x, double* sum,
                          DType read_as = DType::f32);
  /// Returns Parameter::cast, with its statistics only if they are collected.
  static ops::QuantizeSink cast_of(const Parameter& parameter, const Update& step);

  const OptimizerSettings& settings() const { return site_.settings; }
  Device& device() const { return *site_.device; }
  const ParameterStore& parameters() const { return *site_.parameters; }
  const Parameter& parameter(size_t index) const { return *site_.parameters->all()[index]; }
  uint64_t seed() const { return site_.seed; }
  ops::StepControl* device_control() const {
    return static_cast<ops::StepControl*>(control_.data());
  }

 private:
  void round_gradients(Stream stream, Arena& scratch, RankCombiner* combiner) const;
  void sum_gradients(Stream stream, Arena& scratch) const;
  void add_gradient(Stream stream, Arena& scratch, const Parameter& parameter) const;
  void combine_scales(Stream stream, RankCombiner& combiner);
  void finish_update(const Update& step, const Parameter& parameter, Done done) const;

  OptimizerSite site_;
  bool rounds_gradients_ = false;
  bool amax_is_known_ = false;
  ops::LossScaling scaling_;
  Buffer control_;
};

}  // namespace fp8train
