#include "nn/norm.h"

#include "ops/norm/norm.h"

namespace fp8train {

void Norm::forward(const StepContext& context, ConstView input, View y, Saved& saved,
                   const ops::QuantizeSink& cast) const {
  const int64_t rows = input.shape.rows();
  Arena& arena = context.training ? *context.saved : *context.scratch;
  saved = {.x = SavedInput::keep(context, input, input_),
           .mean = {},
           .rstd = allocate(arena, DType::f32, {rows})};
  const View mean = centered_ ? allocate(arena, DType::f32, {rows}) : View{};
  saved.mean = mean;
  ArenaScope decoded(*context.scratch);
  const ConstView x = input_.in_forward(context) ? saved.x.read(context) : input;
  if (!centered_) {
    ops::rms_norm_forward(
        context.stream,
        {.x = x, .weight = weight_->value, .eps = eps_, .y = y, .rstd = saved.rstd, .cast = cast});
    return;
  }
  ops::layer_norm_forward(context.stream,
                          {.x = x,
                           .weight = weight_->value,
                           .bias = bias_ == nullptr ? ConstView{} : ConstView(bias_->value),
                           .eps = eps_,
                           .y = y,
                           .mean = saved.mean,
                           .rstd = saved.rstd,
                           .cast = cast});
}

void Norm::backward(const StepContext& context, ConstView dy, View dx, bool accumulate,
                    const Saved& saved) const {
  ArenaScope scope(*context.scratch);
  const int64_t rows = dy.shape.rows();
  const int64_t width = dy.shape.back();
  const ConstView x = saved.x.read(context);
  if (!centered_) {
    const View partial =
        allocate(*context.scratch, DType::f32, {ops::norm_partial_rows(rows), width});
    ops::rms_norm_backward(context.stream, {.dy = dy,
                                            .x = x,
                                            .weight = weight_->value,
                                            .rstd = saved.rstd,
                                            .dx = dx,
                                            .accumulate = accumulate,
                                            .weight_grad = weight_->gradient,
                                            .scratch = partial});
    return;
  }
  const View partial =
      allocate(*context.scratch, DType::f32, {2 * ops::norm_partial_rows(rows), width});
  ops::layer_norm_backward(context.stream,
                           {.dy = dy,
                            .x = x,
                            .weight = weight_->value,
                            .mean = saved.mean,
                            .rstd = saved.rstd,
                            .dx = dx,
                            .accumulate = accumulate,
                            .weight_grad = weight_->gradient,
                            .bias_grad = bias_ == nullptr ? View{} : bias_->gradient,
                            .scratch = partial});
}

}  // namespace fp8train
