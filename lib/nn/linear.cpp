#include "nn/linear.h"

#include <array>

#include "base/error.h"
#include "nn/partial_gradient.h"
#include "ops/pointwise/elementwise.h"
#include "ops/pointwise/smoothing.h"

namespace fp8train {
namespace {

/// The head has all of its input.
Cut cut_of_x(const LinearSite& site) {
  return site.split == Split::none || site.is_head ? Cut{}
         : site.split == Split::columns            ? Cut{Cut::rows, {}}
                                                   : Cut{Cut::columns, {site.in_features}};
}

Cut cut_of_dy(const LinearSite& site) {
  return site.split == Split::none      ? Cut{}
         : site.split == Split::columns ? Cut{Cut::columns, site.pieces()}
                                        : Cut{Cut::rows, {}};
}

/// Stores what a GEMM has made in the format of the gradient. A scale follows from all parts of it.
void store_gradient(const StepContext& context, const Parameter& weight, ops::Store call) {
  const View& scales = call.to.scales;
  if (weight.sharding.cut == Axis::tensor && context.tensor_ranks != nullptr &&
      codec_of(call.to.format) == Codec::tensor) {
    call.step = CastStep::amax;
    ops::store(context.stream, call);
    context.tensor_ranks->largest(context, {scales.as<float>() + 1, DType::f32, {1}});
    call.step = CastStep::codes;
  }
  ops::store(context.stream, call);
}

/// Where the forward pass has cast for the same slot, its statistics stay.
StepContext cast_again(const StepContext& context, const QuantizedInput& x) {
  StepContext again = context;
  again.collect_statistics =
      context.collect_statistics && x.slot(Along::columns) != x.slot(Along::rows);
  return again;
}

}  // namespace

Linear::Linear(const LinearPlan& plan, Parameter* weight, Parameter* bias, ScalingState& scaling)
    : plan_(plan),
      bias_(bias),
      x_(scaling, plan.site.name,
         {.name = "x", .format = plan.fprop.a, .other = plan.fprop.b, .cut = cut_of_x(plan.site)},
         {"x.wgrad", plan.wgrad.b, plan.wgrad.a}, plan.evaluate_scaled),
      weight_(plan, weight, scaling),
      dy_(scaling, plan.site.name,
          {.name = "dy",
           .format = plan.dgrad.a,
           .other = plan.dgrad.b,
           .cut = cut_of_dy(plan.site)},
          {"dy.wgrad", plan.wgrad.a, plan.wgrad.b}) {
  weight_.add_smoothed(scaling);
}

void Linear::add_adapter(Linear a, Linear b, int64_t first, float scale) {
  adapters_.push_back(std::move(a));
  adapters_.push_back(std::move(b));
  adapted_.push_back({first, scale});
}

QuantizedInput::Memory Linear::memory_of_input(const StepContext& context) const {
  const bool saves = context.training && !plan_.remade_input && trains_weight();
  return {context.scratch, saves ? context.memory_of_x() : nullptr};
}

InputTensor Linear::allocate_x(const StepContext& context, int64_t rows,
                               QuantizedInput::Memory memory) const {
  const int64_t width = plan_.site.in_features;
  if (gathers(context, Split::columns)) {
    return allocate_own_rows(context, {rows, width}, memory);
  }
  InputTensor x =
      x_.allocate(context, plan_.activation, {rows, width}, memory, memory_of_plain_x(context));
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
  return dy_.allocate(
      context, plan_.activation, {rows, plan_.site.out_features}, memory_of_gradient(context),
      (bias_ != nullptr && bias_->trained) || has_adapters() ? context.scratch : nullptr);
}

Linear::Saved Linear::save_remade(const StepContext& context, const InputTensor& x) const {
  const StepContext again = cast_again(context, x_);
  return {
      x_.operands(again, x, {nullptr, memory_of_wgrad(context)}).along_columns, x.smoothing, {}};
}

/// Stored for backward is only what crosses.
InputTensor Linear::allocate_own_rows(const StepContext& context, const Shape& shape,
                                      QuantizedInput::Memory memory) const {
  Arena* const own = memory.along_columns == nullptr ? context.scratch : memory.along_columns;
  Arena* const plain = memory_of_plain_x(context);
  return x_.gathers_codes(context)
             ? x_.allocate(context, plan_.activation, shape, {own, nullptr}, plain)
             : allocate(plain == nullptr ? *own : *plain, plan_.activation, shape);
}

ops::GemmOperand Linear::own_rows(const StepContext& context, const QuantizedInput& input,
                                  const InputTensor& x, Arena* memory) {
  return input.gathers_codes(context) ? input.operands(context, x, {memory, nullptr}).along_rows
                                      : ops::GemmOperand(x.plain);
}

QuantizedInput::Operands Linear::operands_of_dy(const StepContext& context,
                                                const InputTensor& dy) const {
  const QuantizedInput::Memory memory = memory_of_gradient(context);
  return gathers(context, Split::rows)
             ? dy_.gathered(context, own_rows(context, dy_, dy, context.scratch), memory)
             : dy_.operands(context, dy, memory);
}

void Linear::forward(const StepContext& context, const InputTensor& x, View y, Saved& saved) const {
  ArenaScope scope(*context.scratch);
  check(x.smoothing.empty() != (plan_.is_smoothed() && x_.reads_codes(context, Along::rows)),
        "a layer whose input is smoothed takes it with its scales");
  const QuantizedInput::Memory memory = memory_of_input(context);
  QuantizedInput::Operands operands;
  if (gathers(context, Split::columns)) {
    Arena* const own = memory.along_columns != nullptr ? memory.along_columns : context.scratch;
    operands.along_columns = own_rows(context, x_, x, own);
    operands.along_rows =
        x_.gathered(context, operands.along_columns, {context.scratch, nullptr}).along_rows;
  } else {
    operands = x_.operands(context, x, memory);
  }
  saved = context.training ? Saved{operands.along_columns, x.smoothing, {}, {}} : Saved{};
  if (!y.empty()) {
    const LinearProduct product = {
        .plan = plan_.fprop,
        .a = operands.along_rows,
        .b = weight_.fprop_operand(context, x.smoothing),
        .c = y,
        .bias = bias_ == nullptr ? ConstView{} : ConstView(bias_->value)};
    if (plan_.site.split == Split::rows && context.divides_sums()) {
      multiply_over_ranks(context, product, std::array{plan_.site.in_features});
    } else {
      multiply(context, product);
    }
  }
  add_adapters(context, x, y, saved);
}

void Linear::add_adapters(const StepContext& context, const InputTensor& x, const View& y,
                          Saved& saved) const {
  saved.adapters.resize(adapters_.size());
  for (size_t i = 0; i < adapted_.size(); ++i) {
    ArenaScope scope(*context.scratch);
    const Linear& a = adapters_[2 * i];
    const Linear& b = adapters_[2 * i + 1];
    // Where y is a sum over ranks, this one's rows of it are those of y.
    const int64_t rows_of_x = x.plain.shape.rows();
    const int64_t rows =
        a.plan_.site.split == Split::rows ? context.own_rows(rows_of_x) : rows_of_x;
    const InputTensor inner = b.allocate_input(context, rows);
    a.forward(context, x.plain, inner.plain, saved.adapters[2 * i]);
    const int64_t columns = b.plan_.site.out_features;
    const View outer =
        y.empty() ? View{} : allocate(*context.scratch, y.dtype, {y.shape.rows(), columns});
    b.forward(context, inner, outer, saved.adapters[2 * i + 1]);
    if (y.empty()) {
      continue;
    }
    ops::add_columns(context.stream, {.x = outer,
                                      .y = y,
                                      .y_first = adapted_[i].first,
                                      .columns = columns,
                                      .factor = adapted_[i].scale});
  }
}

void Linear::add_adapter_gradients(const StepContext& context, const InputTensor& dy,
                                   const View& dx, Saved& saved) const {
  for (size_t i = 0; i < adapted_.size(); ++i) {
    ArenaScope scope(*context.scratch);
    const Linear& a = adapters_[2 * i];
    const Linear& b = adapters_[2 * i + 1];
    const int64_t columns = b.plan_.site.out_features;
    const int64_t rows = dy.plain.shape.rows();
    const View d_outer = allocate(*context.scratch, dy.plain.dtype, {rows, columns});
    ops::add_columns(context.stream, {.x = dy.plain,
                                      .y = d_outer,
                                      .x_first = adapted_[i].first,
                                      .columns = columns,
                                      .factor = adapted_[i].scale,
                                      .overwrites = true});
    const InputTensor d_inner = a.allocate_gradient(
        context, b.plan_.site.split == Split::columns ? context.own_rows(rows) : rows);
    b.backward(context, d_outer, d_inner.plain, saved.adapters[2 * i + 1]);
    const View own = dx.empty() ? View{} : allocate(*context.scratch, dx.dtype, dx.shape);
    a.backward(context, d_inner, own, saved.adapters[2 * i]);
    if (!dx.empty()) {
      ops::add(context.stream, dx, own, dx);
    }
  }
}

void Linear::backward(const StepContext& context, const InputTensor& dy, View dx,
                      Saved& saved) const {
  ArenaScope scope(*context.scratch);
  const QuantizedInput::Operands operands = operands_of_dy(context, dy);
  if (!dx.empty()) {
    const LinearProduct product = {.plan = plan_.dgrad,
                                   .a = operands.along_rows,
                                   .b = weight_.dgrad_operand(context),
                                   .c = dx};
    if (plan_.site.split != Split::columns || !context.divides_sums()) {
      multiply(context, product);
    } else if (plan_.site.is_head) {
      multiply_in_parts(context, product, plan_.site.pieces());
    } else {
      multiply_over_ranks(context, product, plan_.site.pieces());
    }
  }
  saved.dy = operands.along_columns;
  if (context.held == nullptr) {
    add_gradient_of_weight(context, saved);
  } else if (trains_weight()) {
    hold(context, saved);
  }
  if (bias_ != nullptr && bias_->trained) {
    add_bias_gradient(context, dy.plain);
  }
  add_adapter_gradients(context, dy, dx, saved);
  if (context.listener != nullptr) {
    context.listener->progress();
  }
}

/// A dy that is not cast is in memory of the caller; the casts of an x that crosses as it is read
/// the scales of the present.
void Linear::hold(const StepContext& context, Saved& saved) const {
  if (saved.dy.is_plain()) {
    const ConstView dy = saved.dy.matrix();
    const View copy = allocate(*context.held, dy.dtype, dy.shape);
    ops::cast(context.stream, dy, copy);
    saved.dy.tensor = copy;
  }
  if (gathers(context, Split::columns) && !x_.gathers_codes(context)) {
    saved.x = x_.gathered(cast_again(context, x_), saved.x, {nullptr, context.held}).along_columns;
  }
}

void Linear::add_weight_gradient(const StepContext& context, const Saved& saved) const {
  add_gradient_of_weight(context, saved);
  for (size_t i = 0; i < adapters_.size(); ++i) {
    adapters_[i].add_weight_gradient(context, saved.adapters[i]);
  }
}

void Linear::add_gradient_of_weight(const StepContext& context, const Saved& saved) const {
  if (!trains_weight()) {
    return;
  }
  Saved whole = saved;
  if (gathers(context, Split::columns) && (context.held == nullptr || x_.gathers_codes(context))) {
    whole.x =
        x_.gathered(cast_again(context, x_), saved.x, {nullptr, context.scratch}).along_columns;
  }
  if (weight_.parameter().sharding.partial) {
    make_partial_gradient(context, whole);
  } else {
    make_weight_gradient(context, whole);
  }
}

void Linear::make_partial_gradient(const StepContext& context, const Saved& operands) const {
  check(operands.dy.is_plain() && operands.x.is_plain(),
        "partial gradients are products of values, not of codes");
  ArenaScope scope(*context.scratch);
  const ConstView dy = operands.dy.matrix();
  PartialGradients<1>(context, {&weight_.parameter()})
      .add(dy.shape.rows(),
           [&](const SumRange& range, const std::array<View, 1>& gradients, bool overwrites) {
             multiply(context, {.plan = plan_.wgrad,
                                .a = {rows_of(dy, range.first, range.count), true},
                                .b = {rows_of(operands.x.matrix(), range.first, range.count), true},
                                .c = gradients[0],
                                .beta = overwrites ? 0.0F : 1.0F});
           });
}

void Linear::add_bias_gradient(const StepContext& context, ConstView dy) const {
  const int64_t rows = dy.shape.rows();
  const int64_t width = dy.shape.back();
  const View scratch =
      allocate(*context.scratch, DType::f32, {ops::bias_partial_rows(rows), width});
  const auto add = [&](const SumRange& range, const std::array<View, 1>& gradients,
                       bool overwrites) {
    ops::bias_backward(context.stream, rows_of(dy, range.first, range.count), gradients[0], scratch,
                       overwrites);
  };
  if (plan_.site.split == Split::rows) {
    return PartialGradients<1>(context, {bias_}).add(rows, add);
  }
  add({0, rows}, {bias_->gradient}, context.overwrites_gradients && bias_->overwritten);
}

void Linear::make_weight_gradient(const StepContext& context, const Saved& operands) const {
  const Parameter& weight = weight_.parameter();
  const bool add = !(context.overwrites_gradients && weight.overwritten);
  // Where values are added to a gradient in bf16, the sum of both is rounded.
  const bool rounds = !add && gradient_result(plan_, weight.stored_gradient.format) == DType::bf16;
  const ConstView& smoothing = operands.smoothing;
  const bool direct = (!weight.gradient.empty() || rounds) && smoothing.empty();
  ArenaScope scope(*context.scratch);
  const View product = !direct  ? allocate(*context.scratch, DType::f32, weight.shape)
                       : rounds ? weight.stored_gradient.codes
                                : weight.gradient;
  multiply(context, {.plan = plan_.wgrad,
                     .a = operands.dy,
                     .b = operands.x,
                     .c = product,
                     .beta = direct && add ? 1.0F : 0.0F});
  if (direct) {
    return;
  }
  if (!smoothing.empty()) {
    const bool stored = weight.gradient.empty();
    ops::divide_columns(context.stream, product, smoothing, stored ? product : weight.gradient,
                        add && !stored);
    if (!stored) {
      return;
    }
  }
  store_gradient(context, weight,
                 {.x = product,
                  .to = weight.stored_gradient,
                  .add = add,
                  .automatic = weight.scales_sum ? nullptr : weight.automatic});
}

}  // namespace fp8train
