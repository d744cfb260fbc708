#include "nn/mlp.h"

#include "ops/activation.h"

namespace fp8train {

void Mlp::forward(const StepContext& context, ConstView x, View y, Saved& saved) const {
  ArenaScope scope(*context.scratch);
  const int64_t rows = x.shape.rows();
  const int64_t up_width = up_.plan().site.out_features;
  const int64_t down_width = down_.plan().site.in_features;
  Arena& arena = context.training ? *context.saved : *context.scratch;
  saved.pre_activation = allocate(arena, x.dtype, {rows, up_width});
  up_.forward(context, x, saved.pre_activation, saved.up);
  Arena& activated_arena =
      context.training && down_.keeps_input() ? *context.saved : *context.scratch;
  const View activated = allocate(activated_arena, x.dtype, {rows, down_width});
  if (activation_ == MlpActivation::swiglu) {
    ops::swiglu_forward(context.stream, saved.pre_activation, activated);
  } else {
    ops::gelu_forward(context.stream, saved.pre_activation, activated);
  }
  down_.forward(context, activated, y, saved.down);
}

void Mlp::backward(const StepContext& context, ConstView dy, View dx, const Saved& saved) const {
  ArenaScope scope(*context.scratch);
  const int64_t rows = dy.shape.rows();
  const View d_activated =
      allocate(*context.scratch, dy.dtype, {rows, down_.plan().site.in_features});
  down_.backward(context, dy, d_activated, saved.down);
  const View d_pre = allocate(*context.scratch, dy.dtype, saved.pre_activation.shape);
  if (activation_ == MlpActivation::swiglu) {
    ops::swiglu_backward(context.stream, d_activated, saved.pre_activation, d_pre);
  } else {
    ops::gelu_backward(context.stream, d_activated, saved.pre_activation, d_pre);
  }
  up_.backward(context, d_pre, dx, saved.up);
}

}  // namespace fp8train
