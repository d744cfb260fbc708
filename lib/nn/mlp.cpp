#include "nn/mlp.h"

#include "ops/pointwise/activation.h"
#include "ops/pointwise/smoothing.h"

namespace fp8train {

void Mlp::activate(const StepContext& context, ConstView pre_activation,
                   const InputTensor& activated, bool silu_in_codes) const {
  switch (kind_) {
    case MlpKind::swiglu:
      if (!activated.smoothing.empty()) {
        ops::find_smoothing(context.stream, pre_activation, activated.smoothing);
      }
      ops::swiglu_forward(context.stream, pre_activation, activated.plain, activated.cast,
                          activated.smoothing, silu_in_codes);
      break;
    case MlpKind::gelu:
      ops::gelu_forward(context.stream, pre_activation, activated.plain, activated.cast);
      break;
  }
}

void Mlp::forward(const StepContext& context, const InputTensor& x, View y, Saved& saved) const {
  ArenaScope scope(*context.scratch);
  const int64_t rows = context.rows_of_ranks(x.plain.shape.rows());
  const bool stays = context.training && !pre_activation_.has_codes();
  Arena& arena = stays ? *context.saved : *context.scratch;
  const View pre_activation = allocate(arena, x.plain.dtype, {rows, up_.plan().site.out_features});
  up_.forward(context, x, pre_activation, saved.up);
  saved.pre_activation = SavedInput::keep(context, pre_activation, pre_activation_);
  const bool reads_codes = pre_activation_.in_forward(context);
  if (reads_codes) {
    saved.pre_activation.decode(context, pre_activation);
  }
  const InputTensor activated = down_.allocate_input(context, rows);
  activate(context, pre_activation, activated, reads_codes);
  down_.forward(context, activated, y, saved.down);
}

void Mlp::backward(const StepContext& context, ConstView dy, View dx, Saved& saved) const {
  ArenaScope scope(*context.scratch);
  const int64_t rows = context.rows_of_ranks(dy.shape.rows());
  const bool reads_codes = pre_activation_.in_forward(context);
  const View d_activated =
      allocate(*context.scratch, dy.dtype, {rows, down_.plan().site.in_features});
  ConstView pre_activation;
  if (down_.remakes_input()) {
    pre_activation = saved.pre_activation.read(context);
    ArenaScope remade(*context.scratch);
    const InputTensor activated = down_.allocate_remade(context, rows);
    activate(context, pre_activation, activated, reads_codes);
    saved.down = down_.save_remade(context, activated);
    down_.backward(context, dy, d_activated, saved.down);
  } else {
    down_.backward(context, dy, d_activated, saved.down);
    pre_activation = saved.pre_activation.read(context);
  }
  const InputTensor d_pre = up_.allocate_gradient(context, rows);
  switch (kind_) {
    case MlpKind::swiglu:
      ops::swiglu_backward(context.stream, d_activated, pre_activation, d_pre.plain, d_pre.cast,
                           reads_codes);
      break;
    case MlpKind::gelu:
      ops::gelu_backward(context.stream, d_activated, pre_activation, d_pre.plain, d_pre.cast);
      break;
  }
  up_.backward(context, d_pre, dx, saved.up);
}

}  // namespace fp8train
