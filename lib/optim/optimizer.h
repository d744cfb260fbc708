#pragma once
// One optimizer step over a parameter store: global gradient norm, clipping, skip of non-finite
// steps, the update itself and the GEMM copies of the new weights. Everything is decided on the
// device; the host reads StepReport once per logging interval.

#include <cstdint>
#include <vector>

#include "device/arena.h"
#include "nn/parameter.h"
#include "ops/optimizer.h"
#include "optim/settings.h"

namespace fp8train {

/// What the last step did, read from the device.
struct StepReport {
  float gradient_norm;    ///< before clipping, without the loss scale
  float loss_scale;       ///< for the next step
  int64_t skipped_steps;  ///< since the start of the run
  int64_t applied_steps;
  bool skipped;  ///< the last step
};

/// How moments are kept, as StoredTensor allows.
struct MomentFormats {
  TensorFormat first, second;
};

class Optimizer {
 public:
  /// Allocates moments (zero) for every parameter. `parameters` outlives the optimizer. Throws
  /// ConfigError when the optimizer keeps no moments in these formats: sgd's momentum is fp32.
  Optimizer(Device& device, ParameterStore& parameters, const OptimizerSettings& settings,
            bool dynamic_loss_scaling, const MomentFormats& moments = {});

  /// Zeroes the gradients; before the first micro-batch of a step.
  void begin_step(Stream stream);

  /// Of the steps from now on; kept on the device, so that a recorded step can be replayed.
  void set_learning_rate(double lr);

  /// Applies the accumulated gradients, unless their norm is not finite, and casts the new weights
  /// as their Parameter::cast says; with statistics only when `collect_statistics`.
  void step(Stream stream, Arena& scratch, bool collect_statistics = false);

  /// Device scalar that losses are multiplied by before backward (1 without loss scaling).
  const float* loss_scale() const;

  /// Device scalar that the norm of the step is summed in; NaN in it makes the step a skipped one.
  double* squared_norm() const { return &device_control()->squared_norm; }

  StepReport report() const;

  /// For checkpoints: moments over the store's flat layout as they are kept (moment2 empty for sgd,
  /// both without momentum), those of one parameter, and the control.
  View moment1() const { return moment1_.codes.view(); }
  View moment2() const { return moment2_.codes.view(); }
  StoredTensor moment1(size_t parameter) const { return slice(moment1_, parameter); }
  StoredTensor moment2(size_t parameter) const { return slice(moment2_, parameter); }
  ops::StepControl control() const;
  void set_control(const ops::StepControl& control);

 private:
  ops::StepControl* device_control() const {
    return static_cast<ops::StepControl*>(control_.data());
  }
  /// One moment of all parameters: codes over the flat layout, scales one parameter after another.
  struct State {
    TensorFormat format;
    Tensor codes, scales;
    std::vector<int64_t> first_scale;  // of each parameter
  };
  State make_state(const TensorFormat& format) const;
  StoredTensor slice(const State& state, size_t parameter) const;

  Device* device_;
  ParameterStore* parameters_;
  OptimizerSettings settings_;
  ops::LossScaling scaling_;
  State moment1_, moment2_;
  Buffer control_;
};

}  // namespace fp8train
