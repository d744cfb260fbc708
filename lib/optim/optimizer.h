#pragma once
// One optimizer step over a parameter store: the gradients' global norm, clipping, skip of
// non-finite steps, the update itself and the GEMM copies of the new weights. Everything is decided
// on the device; the host reads StepReport once per logging interval.

#include <cstdint>
#include <vector>

#include "device/arena.h"
#include "nn/parameter.h"
#include "ops/optimizer/optimizer.h"
#include "optim/settings.h"

namespace fp8train {

/// What the last step did, read from the device.
struct StepReport {
  float gradient_norm;    ///< before clipping, without the loss scale
  float loss_scale;       ///< for the next step
  int64_t skipped_steps;  ///< since the start of the run
  int64_t applied_steps;
  bool skipped;              ///< the last step
  int64_t skipped_in_a_row;  ///< up to the last step
};

/// How values of several ranks become one, in place: for an optimizer that updates parts of
/// parameters (Parameter::updated).
class RankCombiner {
 public:
  virtual ~RankCombiner() = default;
  /// One fp64 value.
  virtual void sum(double* value) = 0;
  /// fp32 magnitudes; NaN is larger than all.
  virtual void largest(const View& values) = 0;
};

class Optimizer {
 public:
  /// Allocates moments (zero) for every parameter, in its formats. `parameters` outlives the
  /// optimizer. `seed`: of stochastic rounding. Throws ConfigError when the optimizer does not work
  /// on these formats: sgd is fp32.
  Optimizer(Device& device, ParameterStore& parameters, const OptimizerSettings& settings,
            bool dynamic_loss_scaling, uint64_t seed = 0);

  /// Zeroes the gradients, but for those that the first micro-batch overwrites
  /// (Parameter::overwritten); before the first micro-batch of a step.
  void begin_step(Stream stream);

  /// Of the steps from now on; kept on the device, so that a recorded step can be replayed.
  void set_learning_rate(double lr);

  /// Where there is one rank: step() rounds the gradients once to what would cross their wires, so
  /// that a result does not depend on how many ranks there are. Not otherwise.
  void set_rounds_gradients(bool rounds) { rounds_gradients_ = rounds; }

  /// Applies the accumulated gradients, unless their norm is not finite, and casts the new weights
  /// as their Parameter::cast says; with statistics only when `collect_statistics`. `combiner`:
  /// where ranks update parts. fp32 gradients whose wire is bf16 are rounded where they are
  /// read and stay in memory as they are; others are rounded in place.
  void step(Stream stream, Arena& scratch, bool collect_statistics = false,
            RankCombiner* combiner = nullptr);

  /// Several ranks, after step(): the factors of automatic scales follow from what all ranks have
  /// counted in sums. of_ranks: ParameterStore::automatic_scales() of each.
  void update_sum_scales(Stream stream, ConstView of_ranks) const;

  /// Device scalar that losses are multiplied by before backward (1 without loss scaling).
  const float* loss_scale() const;

  /// Device scalar that the norm of the step is summed in; NaN in it makes the step a skipped one.
  double* squared_norm() const { return &device_control()->squared_norm; }

  StepReport report() const;

  /// For checkpoints: the moments of one parameter, or of the part of it that is updated (the
  /// second empty for sgd, both without momentum), and the control.
  StoredTensor moment1(size_t parameter) const { return of(moment1_, parameter); }
  StoredTensor moment2(size_t parameter) const { return of(moment2_, parameter); }
  ops::StepControl control() const;
  void set_control(const ops::StepControl& control);

 private:
  ops::StepControl* device_control() const {
    return static_cast<ops::StepControl*>(control_.data());
  }
  static StoredTensor of(const StoredPool& moment, size_t parameter) {
    return moment.empty() ? StoredTensor{} : moment.at(parameter);
  }
  void check_formats() const;
  DType read_as(const TensorFormat& gradient, const TensorFormat& wire) const;
  void round_gradients(Stream stream, Arena& scratch) const;
  void sum_gradients(Stream stream, Arena& scratch) const;
  void update(Stream stream, size_t index, bool collect_statistics) const;
  ops::AdamW adamw_call(size_t index, bool collect_statistics) const;
  void find_amax(Stream stream, RankCombiner& combiner) const;

  Device* device_;
  ParameterStore* parameters_;
  OptimizerSettings settings_;
  uint64_t seed_;
  bool rounds_gradients_ = false;
  ops::LossScaling scaling_;
  StoredPool moment1_, moment2_;
  Buffer control_;
};

}  // namespace fp8train
