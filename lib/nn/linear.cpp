#include "nn/linear.h"

#include "base/error.h"
#include "ops/pointwise/elementwise.h"
#include "ops/pointwise/smoothing.h"

namespace fp8train {

Linear::Linear(const LinearPlan& plan, Parameter* weight, Parameter* bias, ScalingState& scaling)
    : plan_(plan),
      bias_(bias),
      x_(scaling, plan.site.name, {"x", plan.fprop.a, plan.fprop.b},
         {"x.wgrad", plan.wgrad.b, plan.wgrad.a}, plan.evaluate_scaled),
      weight_(plan, weight, scaling),
      dy_(scaling, plan.site.name, {"dy", plan.dgrad.a, plan.dgrad.b},
          {"dy.wgrad", plan.wgrad.a, plan.wgrad.b}) {
  weight_.add_smoothed(scaling);
}

QuantizedInput::Memory Linear::memory_of_input(const StepContext& context) const {
  const bool saves = context.training && !plan_.remade_input && trains_weight();
  return {context.scratch, saves ? context.saved : nullptr};
}

InputTensor Linear::allocate_x(const StepContext& context, int64_t rows,
                               QuantizedInput::Memory memory) const {
  const int64_t width = plan_.site.in_features;
  InputTensor x = x_.allocate(context, plan_.activation, {rows, width}, memory);
  if (plan_.is_smoothed() && x_.reads_codes(context, Along::rows)) {
    Arena* const arena = memory.along_columns == nullptr ? context.scratch : memory.along_columns;
    x.smoothing = allocate(*arena, DType::f32, {width});
  }
  return x;
}

InputTensor Linear::allocate_input(const StepContext& context, int64_t rows) const {
  return allocate_x(context, rows, memory_of_input(context));
}

InputTensor Linear::allocate_remade(const StepContext& context, int64_t rows) const {
  return allocate_x(context, rows, {nullptr, memory_of_wgrad(context)});
}

InputTensor Linear::allocate_gradient(const StepContext& context, int64_t rows) const {
  return dy_.allocate(context, plan_.activation, {rows, plan_.site.out_features},
                      {context.scratch, memory_of_wgrad(context)},
                      bias_ != nullptr && bias_->trained);
}

Linear::Saved Linear::save_remade(const StepContext& context, const InputTensor& x) const {
  StepContext again = context;
  // Where the forward pass has cast for the same slot, its statistics stay.
  again.collect_statistics =
      context.collect_statistics && x_.slot(Along::columns) != x_.slot(Along::rows);
  return {x_.operands(again, x, {nullptr, memory_of_wgrad(context)}).along_columns, x.smoothing};
}

void Linear::forward(const StepContext& context, const InputTensor& x, View y, Saved& saved) const {
  ArenaScope scope(*context.scratch);
  check(x.smoothing.empty() != (plan_.is_smoothed() && x_.reads_codes(context, Along::rows)),
        "a layer whose input is smoothed takes it with its scales");
  const QuantizedInput::Operands operands = x_.operands(context, x, memory_of_input(context));
  multiply(context, {.plan = plan_.fprop,
                     .a = operands.along_rows,
                     .b = weight_.fprop_operand(context, x.smoothing),
                     .c = y,
                     .bias = bias_ == nullptr ? ConstView{} : ConstView(bias_->value)});
  saved = context.training ? Saved{operands.along_columns, x.smoothing} : Saved{};
}

void Linear::backward(const StepContext& context, const InputTensor& dy, View dx,
                      const Saved& saved) const {
  ArenaScope scope(*context.scratch);
  const QuantizedInput::Operands operands =
      dy_.operands(context, dy, {context.scratch, memory_of_wgrad(context)});
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
    const View partial = allocate(*context.scratch, DType::f32,
                                  {ops::bias_partial_rows(rows), dy.plain.shape.back()});
    ops::bias_backward(context.stream, dy.plain, bias_->gradient, partial,
                       context.overwrites_gradients && bias_->overwritten);
  }
  if (context.listener != nullptr) {
    context.listener->progress();
  }
}

void Linear::make_weight_gradient(const StepContext& context, const ops::GemmOperand& dy,
                                  const Saved& x) const {
  const Parameter& weight = weight_.parameter();
  const bool add = !(context.overwrites_gradients && weight.overwritten);
  // Where values are added to a gradient in bf16, the sum of both is rounded.
  const bool rounds = !add && gradient_result(plan_, weight.stored_gradient.format) == DType::bf16;
  const bool direct = (!weight.gradient.empty() || rounds) && x.smoothing.empty();
  ArenaScope scope(*context.scratch);
  const View product = !direct  ? allocate(*context.scratch, DType::f32, weight.shape)
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
