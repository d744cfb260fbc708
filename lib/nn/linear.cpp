#include "nn/linear.h"

#include "base/error.h"
#include "base/math.h"
#include "ops/cast/quantize.h"
#include "ops/pointwise/elementwise.h"
#include "ops/pointwise/smoothing.h"

namespace fp8train {
namespace {

constexpr int64_t kBiasChunk = 64;

LinearOperands::Memory memory_of(Arena& arena) {
  return [&arena](DType dtype, const Shape& shape) { return allocate(arena, dtype, shape); };
}

/// Whether the scale is there before the tensor is.
bool writes_codes_at_once(const StepContext& context, const ScalingSlot& slot) {
  return slot.format.policy == ScalePolicy::delayed &&
         !LinearOperands::scales_now(context, slot.format);
}

LinearOperands::Wanted wanted_of_gradient(const StepContext& context) {
  return {!context.plain, !context.plain};
}

bool smooths(const LinearPlan& plan) {
  return plan.swiglu == SwigluInput::smoothed;
}

/// fprop's weight operand as it is made once per step: none, where it is another one in each pass.
LinearOperands::Role weight_of_fprop(const LinearPlan& plan) {
  const TensorFormat activation = plain(plan.activation);
  return smooths(plan) ? LinearOperands::Role{"w", activation, activation}
                       : LinearOperands::Role{"w", plan.fprop.b, plan.fprop.a};
}

}  // namespace

Linear::Linear(const LinearPlan& plan, Parameter* weight, Parameter* bias, ScalingState& scaling)
    : plan_(plan),
      weight_(weight),
      bias_(bias),
      x_(scaling, plan.site.name, {"x", plan.fprop.a, plan.fprop.b, true},
         {"x.wgrad", plan.wgrad.b, plan.wgrad.a, true}),
      w_(scaling, plan.site.name, weight_of_fprop(plan), {"w.dgrad", plan.dgrad.b, plan.dgrad.a}),
      dy_(scaling, plan.site.name, {"dy", plan.dgrad.a, plan.dgrad.b, true},
          {"dy.wgrad", plan.wgrad.a, plan.wgrad.b, true}) {
  if (smooths(plan)) {
    const TensorFormat unused = plain(plan.activation);
    smoothed_w_.emplace(scaling, plan.site.name,
                        LinearOperands::Role{"w.smooth", plan.fprop.b, plan.fprop.a},
                        LinearOperands::Role{"", unused, unused});
  }
  // Of a master in two halves ranks can gather the upper ones alone, where no GEMM reads codes.
  const bool upper_half =
      weight->formats.value.remainder && !w_.scaled_along_rows() && !w_.scaled_along_columns();
  const bool reads_value = smooths(plan) || (needs_plain_weight() && value_serves() && !upper_half);
  weight->value_is_read = weight->value_is_read || reads_value;
  choose_gathered_form();
}

LinearOperand Linear::smoothed_weight(const StepContext& context, ConstView smoothing) const {
  const View divided = fp8train::allocate(*context.scratch, DType::f32, weight_->shape);
  {
    ArenaScope scope(*context.scratch);
    ops::divide_columns(context.stream, weight_value(context), smoothing, divided, false);
  }
  const LinearOperands::Memory scratch = memory_of(*context.scratch);
  return smoothed_w_
      ->make(context, {.plain = divided, .slot = nullptr, .codes = {}}, {true, false},
             {scratch, scratch})
      .along_rows;
}

LinearOperands::Wanted Linear::wanted_of_input(const StepContext& context) const {
  const bool scaled = !context.plain && (context.training || plan_.evaluate_scaled);
  return {x_.scaled_along_rows() && scaled,
          x_.scaled_along_columns() && context.training && !context.plain && !plan_.remade_input};
}

Linear::Input Linear::place(const StepContext& context, const LinearOperands& operands,
                            const Shape& shape, LinearOperands::Wanted wanted, Arena& stored,
                            Arena* plain) const {
  Input input;
  input.plain = {nullptr, plan_.activation, shape};
  if (plain != nullptr) {
    input.plain = fp8train::allocate(*plain, plan_.activation, shape);
  }
  input.slot = operands.slot_for_producer(wanted);
  if (input.slot == nullptr) {
    return input;
  }
  const ScalingSlot& slot = *input.slot;
  if (!writes_codes_at_once(context, slot)) {
    if (!LinearOperands::amax_is_clear(context, slot)) {
      ops::fill(context.stream, {slot.amax, DType::f32, {1}}, 0.0F);
    }
    input.cast.amax = slot.amax;
    return input;
  }
  const LinearOperands::Destinations destinations = {memory_of(*context.scratch),
                                                     memory_of(stored)};
  input.cast = {
      .out = operands.place(context.device->traits(), &slot, shape, wanted, destinations).codes,
      .amax = context.training ? slot.amax : nullptr,
      .statistics = context.collect_statistics ? slot.statistics : nullptr};
  return input;
}

Linear::Input Linear::place_input(const StepContext& context, int64_t rows) const {
  const LinearOperands::Wanted wanted = wanted_of_input(context);
  const ScalingSlot* slot = x_.slot_for_producer(wanted);
  const bool codes_suffice = slot != nullptr && writes_codes_at_once(context, *slot) &&
                             wanted.along_rows && !context.collect_statistics &&
                             (!context.training || x_.codes_suffice(slot));
  const bool keeps = context.training && (keeps_input() || (context.plain && !plan_.remade_input));
  Arena* const plain = keeps ? context.saved : context.scratch;
  Input input = place(context, x_, {rows, plan_.site.in_features}, wanted, *context.saved,
                      codes_suffice ? nullptr : plain);
  if (smooths(plan_) && wanted.along_rows) {
    input.smoothing = fp8train::allocate(
        context.training && !plan_.remade_input ? *context.saved : *context.scratch, DType::f32,
        {plan_.site.in_features});
  }
  return input;
}

Linear::Input Linear::place_gradient(const StepContext& context, int64_t rows) const {
  const LinearOperands::Wanted wanted = wanted_of_gradient(context);
  const ScalingSlot* slot = dy_.slot_for_producer(wanted);
  const bool codes_suffice = slot != nullptr && writes_codes_at_once(context, *slot) &&
                             dy_.codes_suffice(slot) && !context.collect_statistics &&
                             bias_ == nullptr;
  return place(context, dy_, {rows, plan_.site.out_features}, wanted, *context.scratch,
               codes_suffice ? nullptr : context.scratch);
}

Linear::Input Linear::place_remade(const StepContext& context, int64_t rows) const {
  Input input;
  input.plain =
      fp8train::allocate(*context.scratch, plan_.activation, {rows, plan_.site.in_features});
  if (smooths(plan_) && !context.plain) {
    input.smoothing = fp8train::allocate(*context.scratch, DType::f32, {plan_.site.in_features});
  }
  return input;
}

Linear::Saved Linear::save_remade(const StepContext& context, const Input& x) const {
  const LinearOperands::Memory scratch = memory_of(*context.scratch);
  const LinearOperands::Source source = {.plain = x.plain, .slot = nullptr, .codes = {}};
  const LinearOperands::Wanted wanted = {false, x_.scaled_along_columns() && !context.plain};
  StepContext again = context;
  again.collect_statistics = false;  // those of the forward pass stay
  return {x_.make(again, source, wanted, {scratch, scratch}).along_columns, x.smoothing};
}

void Linear::forward(const StepContext& context, ConstView x, View y, Saved& saved) const {
  run_forward(context, {.plain = x, .slot = nullptr, .codes = {}}, {}, y, saved);
}

void Linear::forward(const StepContext& context, const Input& x, View y, Saved& saved) const {
  run_forward(context, {.plain = x.plain, .slot = x.slot, .codes = x.cast.out}, x.smoothing, y,
              saved);
}

void Linear::run_forward(const StepContext& context, const LinearOperands::Source& x,
                         ConstView smoothing, View y, Saved& saved) const {
  ArenaScope scope(*context.scratch);
  const LinearOperands::Wanted wanted = wanted_of_input(context);
  check(smoothing.empty() != (smooths(plan_) && wanted.along_rows),
        "a layer whose input is smoothed takes it with its scales");
  const LinearOperands::Pair operands =
      x_.make(context, x, wanted, {memory_of(*context.scratch), memory_of(*context.saved)});
  multiply(context, {.a = operands.along_rows,
                     .b = smoothing.empty() ? weight_operand(wanted.along_rows, false)
                                            : smoothed_weight(context, smoothing),
                     .c = y,
                     .beta = 0.0F,
                     .bias = bias_ == nullptr ? ConstView{} : ConstView(bias_->value),
                     .fast_accumulate = plan_.fprop.fast_accumulate,
                     .emulate_accumulator = plan_.fprop.emulate_accumulator});
  saved = context.training ? Saved{operands.along_columns, smoothing} : Saved{};
}

void Linear::backward(const StepContext& context, ConstView dy, View dx, const Saved& saved) const {
  run_backward(context, {.plain = dy, .slot = nullptr, .codes = {}}, dx, saved);
}

void Linear::backward(const StepContext& context, const Input& dy, View dx,
                      const Saved& saved) const {
  run_backward(context, {.plain = dy.plain, .slot = dy.slot, .codes = dy.cast.out}, dx, saved);
}

void Linear::run_backward(const StepContext& context, const LinearOperands::Source& dy, View dx,
                          const Saved& saved) const {
  ArenaScope scope(*context.scratch);
  const LinearOperands::Memory scratch = memory_of(*context.scratch);
  const LinearOperands::Pair operands =
      dy_.make(context, dy, wanted_of_gradient(context), {scratch, scratch});
  if (!dx.empty()) {
    multiply(context, {.a = operands.along_rows,
                       .b = weight_operand(w_.scaled_along_columns() && !context.plain, true),
                       .c = dx,
                       .fast_accumulate = plan_.dgrad.fast_accumulate,
                       .emulate_accumulator = plan_.dgrad.emulate_accumulator});
  }
  make_weight_gradient(context, operands.along_columns, saved);
  if (bias_ != nullptr) {
    const int64_t rows = dy.plain.shape.rows();
    const View partial = fp8train::allocate(*context.scratch, DType::f32,
                                            {ceil_div(rows, kBiasChunk), dy.plain.shape.back()});
    ops::bias_backward(context.stream, dy.plain, bias_->gradient, partial,
                       context.overwrites_gradients && bias_->overwritten);
  }
  if (context.listener != nullptr) {
    context.listener->progress();
  }
}

void Linear::make_weight_gradient(const StepContext& context, const LinearOperand& dy,
                                  const Saved& x) const {
  const bool add = !(context.overwrites_gradients && weight_->overwritten);
  if (!weight_->gradient.empty() && x.smoothing.empty()) {  // straight into the buffer
    multiply(context, {.a = dy,
                       .b = x.x,
                       .c = weight_->gradient,
                       .beta = add ? 1.0F : 0.0F,
                       .fast_accumulate = plan_.wgrad.fast_accumulate,
                       .emulate_accumulator = plan_.wgrad.emulate_accumulator});
    return;
  }
  ArenaScope scope(*context.scratch);
  const View product = fp8train::allocate(*context.scratch, DType::f32, weight_->shape);
  multiply(context, {.a = dy,
                     .b = x.x,
                     .c = product,
                     .fast_accumulate = plan_.wgrad.fast_accumulate,
                     .emulate_accumulator = plan_.wgrad.emulate_accumulator});
  if (!x.smoothing.empty()) {
    const bool stored = weight_->gradient.empty();
    ops::divide_columns(context.stream, product, x.smoothing, stored ? product : weight_->gradient,
                        add && !stored);
    if (!stored) {
      return;
    }
  }
  ops::store(context.stream, {.x = product,
                              .to = weight_->stored_gradient,
                              .add = add,
                              .automatic = weight_->scales_sum ? nullptr : weight_->automatic});
}

}  // namespace fp8train
