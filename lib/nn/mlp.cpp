#include "nn/mlp.h"

#include "ops/activation.h"
#include "ops/smoothing.h"

namespace fp8train {

void Mlp::forward(const StepContext& context, const Linear::Input& x, View y, Saved& saved) const {
  ArenaScope scope(*context.scratch);
  const int64_t rows = x.plain.shape.rows();
  Arena& arena = context.training && !compress_ ? *context.saved : *context.scratch;
  const View pre_activation = allocate(arena, x.plain.dtype, {rows, up_.plan().site.out_features});
  up_.forward(context, x, pre_activation, saved.up);
  saved.pre_activation = SavedInput::keep(context, pre_activation, compress_);
  const Linear::Input activated = down_.place_input(context, rows);
  if (activation_ == MlpActivation::swiglu) {
    if (!activated.smoothing.empty()) {
      ops::find_smoothing(context.stream, pre_activation, activated.smoothing);
    }
    ops::swiglu_forward(context.stream, pre_activation, activated.plain, activated.cast,
                        activated.smoothing);
  } else {
    ops::gelu_forward(context.stream, pre_activation, activated.plain, activated.cast);
  }
  down_.forward(context, activated, y, saved.down);
}

void Mlp::backward(const StepContext& context, ConstView dy, View dx, const Saved& saved) const {
  ArenaScope scope(*context.scratch);
  const int64_t rows = dy.shape.rows();
  const View d_activated =
      allocate(*context.scratch, dy.dtype, {rows, down_.plan().site.in_features});
  down_.backward(context, dy, d_activated, saved.down);
  const ConstView pre_activation = saved.pre_activation.read(context);
  const Linear::Input d_pre = up_.place_gradient(context, rows);
  if (activation_ == MlpActivation::swiglu) {
    ops::swiglu_backward(context.stream, d_activated, pre_activation, d_pre.plain, d_pre.cast);
  } else {
    ops::gelu_backward(context.stream, d_activated, pre_activation, d_pre.plain, d_pre.cast);
  }
  up_.backward(context, d_pre, dx, saved.up);
}

}  // namespace fp8train
