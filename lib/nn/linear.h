#pragma once
// y = x W^T + b with explicit backward, each of its three GEMMs in the format its plan cells say.
// The layer quantizes x once in forward and dy once in backward, reads the weight's GEMM operand
// that was made once per optimizer step, and keeps for backward the FP8 codes of x where wgrad
// reads those, else x itself.

#include <string>

#include "nn/context.h"
#include "nn/parameter.h"
#include "precision/linear_plan.h"
#include "precision/scaling_state.h"
#include "tensor/quantized.h"

namespace fp8train {

class Linear {
 public:
  /// What forward keeps for backward: exactly one of the two is set.
  struct Saved {
    ConstView x;
    QuantizedView codes;
  };

  /// Registers its scaling slots; `weight` [N, K] and `bias` [N] (may be null) belong to the store
  /// and may be shared with others.
  Linear(const LinearPlan& plan, Parameter* weight, Parameter* bias, ScalingState& scaling);

  /// Allocates the weight's GEMM operands. After the store and the scaling state have been
  /// allocated.
  void allocate(Device& device, MemoryCategory plain_copies);

  /// Makes the weight's GEMM operands from its fp32 value; once per optimizer step. The plain copy
  /// is made only when `make_plain_copy` (the optimizer keeps it afterwards).
  void refresh_weight(const StepContext& context, bool make_plain_copy);

  /// Whether forward's x must stay alive until backward (place it in context.saved) because codes
  /// do not replace it.
  bool keeps_input() const { return !plan_.wgrad.b.is_scaled(); }

  /// x: [M, K] in the activation type, y: [M, N].
  void forward(const StepContext& context, ConstView x, View y, Saved& saved) const;

  /// Adds to the gradients of weight and bias; dx (when not empty) is overwritten.
  void backward(const StepContext& context, ConstView dy, View dx, const Saved& saved) const;

  const LinearPlan& plan() const { return plan_; }
  const Parameter& weight() const { return *weight_; }

 private:
  /// The codes of x, placed in `arena`; their transpose too, placed in `transposed` (may be null).
  QuantizedView quantize(const StepContext& context, ConstView x, const ScalingSlot& slot,
                         Arena& arena, Arena* transposed) const;
  QuantizedView weight_codes() const;
  bool scaled(const StepContext& context, const TensorFormat& format) const;
  ConstView plain_weight() const;

  LinearPlan plan_;
  Parameter* weight_;
  Parameter* bias_;
  const ScalingSlot* x_slot_ = nullptr;        // fprop's x, and wgrad's when it has the same format
  const ScalingSlot* x_wgrad_slot_ = nullptr;  // wgrad's x
  const ScalingSlot* w_slot_ = nullptr;
  const ScalingSlot* dy_slot_ = nullptr;  // dgrad's dy, and wgrad's when it has the same format
  const ScalingSlot* dy_wgrad_slot_ = nullptr;
  Tensor plain_copy_;
  Tensor codes_;
  Tensor codes_transposed_;  // [K, N], where the device multiplies along contiguous K only
  Tensor codes_scale_inv_;   // the scale's reciprocal at the time of the cast: the slot may move on
};

}  // namespace fp8train
