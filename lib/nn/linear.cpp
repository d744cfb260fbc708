#include "nn/linear.h"

#include "base/error.h"
#include "ops/cast/quantize.h"
#include "ops/pointwise/elementwise.h"
#include "ops/pointwise/smoothing.h"

namespace fp8train {

Linear::Linear(const LinearPlan& plan, Parameter* weight, Parameter* bias, ScalingState& scaling)
    : plan_(plan),
      bias_(bias),
      x_(scaling, plan.site.name, {"x", plan.fprop.a, plan.fprop.b, true},
         {"x.wgrad", plan.wgrad.b, plan.wgrad.a, true}),
      weight_(plan, weight, scaling),
      dy_(scaling, plan.site.name, {"dy", plan.dgrad.a, plan.dgrad.b, true},
          {"dy.wgrad", plan.wgrad.a, plan.wgrad.b, true}) {
  weight_.add_smoothed(scaling);
}

LinearOperands::Wanted Linear::wanted_of_gradient(const StepContext& context) const {
  return {!context.plain, !context.plain && trains_weight()};
}

LinearOperands::Wanted Linear::wanted_of_input(const StepContext& context) const {
  const bool scaled = !context.plain && (context.training || plan_.evaluate_scaled);
  return {x_.scaled_along_rows() && scaled, x_.scaled_along_columns() && context.training &&
                                                !context.plain && !plan_.remade_input &&
                                                trains_weight()};
}

void Linear::forward(const StepContext& context, const Source& x, View y, Saved& saved) const {
  ArenaScope scope(*context.scratch);
  const LinearOperands::Wanted wanted = wanted_of_input(context);
  check(x.smoothing.empty() != (plan_.is_smoothed() && wanted.along_rows),
        "a layer whose input is smoothed takes it with its scales");
  const LinearOperands::Pair operands = x_.make_operands(
      context, x, wanted, {memory_of(*context.scratch), memory_of(*context.saved)});
  multiply(context, {.plan = plan_.fprop,
                     .a = operands.along_rows,
                     .b = weight_.fprop_operand(context, wanted.along_rows, x.smoothing),
                     .c = y,
                     .bias = bias_ == nullptr ? ConstView{} : ConstView(bias_->value)});
  saved = context.training ? Saved{operands.along_columns, x.smoothing} : Saved{};
}

void Linear::backward(const StepContext& context, const Source& dy, View dx,
                      const Saved& saved) const {
  ArenaScope scope(*context.scratch);
  const LinearOperands::Memory scratch = memory_of(*context.scratch);
  const LinearOperands::Pair operands =
      dy_.make_operands(context, dy, wanted_of_gradient(context), {scratch, scratch});
  if (!dx.empty()) {
    multiply(context, {.plan = plan_.dgrad,
                       .a = operands.along_rows,
                       .b = weight_.dgrad_operand(context),
                       .c = dx});
  }
  if (trains_weight()) {
    make_weight_gradient(context, operands.along_columns, saved);
  }
  if (bias_ != nullptr && bias_->trained) {
    const int64_t rows = dy.plain.shape.rows();
    const View partial = fp8train::allocate(*context.scratch, DType::f32,
                                            {ops::bias_partial_rows(rows), dy.plain.shape.back()});
    ops::bias_backward(context.stream, dy.plain, bias_->gradient, partial,
                       context.overwrites_gradients && bias_->overwritten);
  }
  if (context.listener != nullptr) {
    context.listener->progress();
  }
}

void Linear::make_weight_gradient(const StepContext& context, const LinearOperand& dy,
                                  const Saved& x) const {
  const Parameter& weight = weight_.parameter();
  const bool add = !(context.overwrites_gradients && weight.overwritten);
  // Where values are added to a gradient in bf16, the sum of both is rounded.
  const bool rounds = !add && gradient_result(plan_, weight.stored_gradient.format) == DType::bf16;
  const bool direct = (!weight.gradient.empty() || rounds) && x.smoothing.empty();
  ArenaScope scope(*context.scratch);
  const View product = !direct  ? fp8train::allocate(*context.scratch, DType::f32, weight.shape)
                       : rounds ? weight.stored_gradient.codes
                                : weight.gradient;
  multiply(
      context,
      {.plan = plan_.wgrad, .a = dy, .b = x.x, .c = product, .beta = direct && add ? 1.0F : 0.0F});
  if (direct) {
    return;
  }
  if (!x.smoothing.empty()) {
    const bool stored = weight.gradient.empty();
    ops::divide_columns(context.stream, product, x.smoothing, stored ? product : weight.gradient,
                        add && !stored);
    if (!stored) {
      return;
    }
  }
  ops::store(context.stream, {.x = product,
                              .to = weight.stored_gradient,
                              .add = add,
                              .automatic = weight.scales_sum ? nullptr : weight.automatic});
}

}  // namespace fp8train
