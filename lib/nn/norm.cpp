#include "nn/norm.h"

#include <array>

#include "nn/partial_gradient.h"
#include "ops/norm/norm.h"
#include "ops/pointwise/elementwise.h"

namespace fp8train {

void Norm::forward(const StepContext& context, const Residual& input, View y, Saved& saved,
                   const ops::QuantizeSink& cast) const {
  const int64_t rows = input.x.shape.rows();
  Arena& arena = context.training ? *context.saved : *context.scratch;
  saved = {.x = {},
           .mean = centered_ ? allocate(arena, DType::f32, {rows}) : View{},
           .rstd = allocate(arena, DType::f32, {rows})};
  if (!input_.in_forward(context)) {
    const ops::ResidualAdd residual = {input.is_due() ? input.branch : View{}, input.sum};
    run(context, input.x, residual, y, saved, cast);
    saved.x = SavedInput::keep(context, input.value(), input_);
    return;
  }
  if (input.is_due()) {
    ops::add(context.stream, input.x, input.branch, input.sum);
  }
  saved.x = SavedInput::keep(context, input.value(), input_);
  ArenaScope decoded(*context.scratch);
  run(context, saved.x.read(context), {}, y, saved, cast);
}

void Norm::run(const StepContext& context, ConstView x, const ops::ResidualAdd& residual, View y,
               const Saved& saved, const ops::QuantizeSink& cast) const {
  ops::norm_forward(context.stream,
                    {.x = x,
                     .weight = weight_->value,
                     .bias = bias_ == nullptr ? ConstView{} : ConstView(bias_->value),
                     .eps = eps_,
                     .y = y,
                     .mean = saved.mean,
                     .rstd = saved.rstd,
                     .cast = cast,
                     .residual = residual});
}

void Norm::backward(const StepContext& context, ConstView dy, View dx, bool accumulate,
                    const Saved& saved) const {
  ArenaScope scope(*context.scratch);
  const int64_t rows = dy.shape.rows();
  const int64_t width = dy.shape.back();
  const ConstView x = saved.x.read(context);
  const int64_t partial_rows = (centered_ ? 2 : 1) * ops::norm_partial_rows(rows);
  const View scratch = allocate(*context.scratch, DType::f32, {partial_rows, width});
  PartialGradients<2>(context, {weight_, bias_})
      .add(rows, [&](const SumRange& range, const std::array<View, 2>& gradients, bool overwrites) {
        const auto part = [&](const auto& view) {
          return view.empty() ? view : rows_of(view, range.first, range.count);
        };
        const auto statistics = [&](const View& of_rows) {
          return of_rows.empty()
                     ? of_rows
                     : View{of_rows.as<float>() + range.first, DType::f32, {range.count}};
        };
        ops::norm_backward(context.stream, {.dy = part(dy),
                                            .x = part(x),
                                            .weight = weight_->value,
                                            .mean = statistics(saved.mean),
                                            .rstd = statistics(saved.rstd),
                                            .dx = part(dx),
                                            .accumulate = accumulate,
                                            .weight_grad = gradients[0],
                                            .bias_grad = gradients[1],
                                            .scratch = scratch,
                                            .overwrite_weight_grad = overwrites});
      });
}

}  // namespace fp8train
