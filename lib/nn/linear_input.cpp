// Where the operations that make x and dy of a linear layer write them, so that they can cast them
// on the way.

#include "nn/linear.h"
#include "ops/cast/quantize.h"
#include "ops/pointwise/elementwise.h"

namespace fp8train {
namespace {

/// Whether the scale is there before the tensor is.
bool writes_codes_at_once(const ScalingSlot& slot) {
  return slot.format.policy == ScalePolicy::delayed && !slot.scales_now;
}

}  // namespace

Linear::Input Linear::allocate_tensor(const StepContext& context, const LinearOperands& operands,
                                      const Shape& shape, LinearOperands::Wanted wanted,
                                      Arena& stored, Arena* plain) const {
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
  if (!writes_codes_at_once(slot)) {
    if (!LinearOperands::amax_is_clear(context, slot)) {
      ops::fill(context.stream, {slot.amax, DType::f32, {1}}, 0.0F);
    }
    input.cast.amax = slot.amax;
    return input;
  }
  const LinearOperands::Destinations destinations = {memory_of(*context.scratch),
                                                     memory_of(stored)};
  input.cast = {
      .out = operands.allocate_cast(context.device->traits(), &slot, shape, wanted, destinations)
                 .codes,
      .amax = context.training ? slot.amax : nullptr,
      .statistics = context.collect_statistics ? slot.statistics : nullptr};
  return input;
}

Linear::Input Linear::allocate_input(const StepContext& context, int64_t rows) const {
  const LinearOperands::Wanted wanted = wanted_of_input(context);
  const ScalingSlot* slot = x_.slot_for_producer(wanted);
  const bool codes_suffice = slot != nullptr && writes_codes_at_once(*slot) && wanted.along_rows &&
                             !context.collect_statistics &&
                             (!context.training || x_.codes_suffice(slot));
  const bool keeps = context.training && (keeps_input() || (context.plain && !plan_.remade_input));
  Arena* const plain = keeps ? context.saved : context.scratch;
  Input input = allocate_tensor(context, x_, {rows, plan_.site.in_features}, wanted, *context.saved,
                                codes_suffice ? nullptr : plain);
  if (plan_.is_smoothed() && wanted.along_rows) {
    input.smoothing = fp8train::allocate(
        context.training && !plan_.remade_input ? *context.saved : *context.scratch, DType::f32,
        {plan_.site.in_features});
  }
  return input;
}

Linear::Input Linear::allocate_gradient(const StepContext& context, int64_t rows) const {
  const LinearOperands::Wanted wanted = wanted_of_gradient(context);
  const ScalingSlot* slot = dy_.slot_for_producer(wanted);
  const bool codes_suffice = slot != nullptr && writes_codes_at_once(*slot) &&
                             dy_.codes_suffice(slot) && !context.collect_statistics &&
                             bias_ == nullptr;
  return allocate_tensor(context, dy_, {rows, plan_.site.out_features}, wanted, *context.scratch,
                         codes_suffice ? nullptr : context.scratch);
}

Linear::Input Linear::allocate_remade(const StepContext& context, int64_t rows) const {
  Input input;
  input.plain =
      fp8train::allocate(*context.scratch, plan_.activation, {rows, plan_.site.in_features});
  if (plan_.is_smoothed() && !context.plain) {
    input.smoothing = fp8train::allocate(*context.scratch, DType::f32, {plan_.site.in_features});
  }
  return input;
}

Linear::Saved Linear::save_remade(const StepContext& context, const Input& x) const {
  const LinearOperands::Memory scratch = memory_of(*context.scratch);
  const LinearOperands::Source source = {.plain = x.plain, .slot = nullptr, .codes = {}};
  const LinearOperands::Wanted wanted = {
      false, x_.scaled_along_columns() && !context.plain && trains_weight()};
  StepContext again = context;
  // Where the forward pass has cast for the same slot, its statistics stay.
  again.collect_statistics = context.collect_statistics && x_.columns_have_own_slot();
  return {x_.make_operands(again, source, wanted, {scratch, scratch}).along_columns, x.smoothing};
}

}  // namespace fp8train
