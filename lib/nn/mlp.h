#pragma once
// The feed-forward half of a block: SwiGLU (fused gate and up projections, then down) or GELU (up,
// then down).

#include "nn/linear.h"
#include "nn/mlp_kind.h"
#include "nn/saved_input.h"

namespace fp8train {

/// The feed-forward layer of a block: up projection, activation and down projection.
class Mlp {
 public:
  struct Saved {
    Linear::Saved up, down;
    SavedInput pre_activation;  ///< swiglu: [rows, 2 F], gate then up; gelu: [rows, F]
  };

  /// `pre_activation`: how the input of the activation function is stored.
  Mlp(MlpKind kind, Linear up, Linear down, const SavedFormat& pre_activation)
      : kind_(kind), up_(std::move(up)), down_(std::move(down)), pre_activation_(pre_activation) {}

  /// Calls visit(Linear&) in order of execution.
  template <typename Visit>
  void for_each_linear(const Visit& visit) {
    visit(up_);
    visit(down_);
  }
  const Linear& up() const { return up_; }
  const Linear& down() const { return down_; }

  /// x: [rows, C], as up() has allocated it. The shape of x is read even if x has no memory. y:
  /// [rows, C]. Of several tensor ranks each has its rows, here and in backward().
  void forward(const StepContext& context, const InputTensor& x, View y, Saved& saved) const;
  /// dy, dx: [rows, C]; dx is overwritten. Adds to the gradients of both layers, or overwrites them
  /// (StepContext::overwrites_gradients).
  void backward(const StepContext& context, ConstView dy, View dx, Saved& saved) const;
  /// Adds the weight gradients that backward() has left (StepContext::held).
  void add_weight_gradients(const StepContext& context, const Saved& saved) const {
    down_.add_weight_gradient(context, saved.down);
    up_.add_weight_gradient(context, saved.up);
  }

 private:
  MlpKind kind_;
  /// Writes the activation into the input that down() has allocated. Finds the smoothing first.
  void activate(const StepContext& context, ConstView pre_activation, const InputTensor& activated,
                bool silu_in_codes) const;

  Linear up_, down_;
  SavedFormat pre_activation_;
};

}  // namespace fp8train
