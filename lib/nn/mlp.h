#pragma once
// The feed-forward half of a block: SwiGLU (fused gate and up projections, then down) or GELU (up,
// then down).

#include "nn/linear.h"
#include "nn/saved_input.h"

namespace fp8train {

enum class MlpActivation : uint8_t { swiglu, gelu };

class Mlp {
 public:
  struct Saved {
    Linear::Saved up, down;
    SavedInput pre_activation;  ///< swiglu: [rows, 2 F], gate then up; gelu: [rows, F]
  };

  /// `compress`: backward reads codes of what the activation function read.
  Mlp(MlpActivation activation, Linear up, Linear down, bool compress)
      : activation_(activation), up_(std::move(up)), down_(std::move(down)), compress_(compress) {}

  Linear& up() { return up_; }
  Linear& down() { return down_; }
  const Linear& up() const { return up_; }

  /// x: as up() has placed it.
  void forward(const StepContext& context, const Linear::Input& x, View y, Saved& saved) const;
  void backward(const StepContext& context, ConstView dy, View dx, const Saved& saved) const;

 private:
  MlpActivation activation_;
  Linear up_, down_;
  bool compress_;
};

}  // namespace fp8train
