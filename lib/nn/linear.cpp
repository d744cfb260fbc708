#include "nn/linear.h"

#include "base/error.h"
#include "ops/elementwise.h"
#include "ops/quantize.h"
#include "ops/smoothing.h"

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

constexpr LinearOperands::Wanted kBoth = {true, true};

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
      x_(scaling, plan.site.name, {"x", plan.fprop.a, plan.fprop.b},
         {"x.wgrad", plan.wgrad.b, plan.wgrad.a}),
      w_(scaling, plan.site.name, weight_of_fprop(plan), {"w.dgrad", plan.dgrad.b, plan.dgrad.a}),
      dy_(scaling, plan.site.name, {"dy", plan.dgrad.a, plan.dgrad.b},
          {"dy.wgrad", plan.wgrad.a, plan.wgrad.b}) {
  if (smooths(plan)) {
    const TensorFormat unused = plain(plan.activation);
    smoothed_w_.emplace(scaling, plan.site.name,
                        LinearOperands::Role{"w.smooth", plan.fprop.b, plan.fprop.a},
                        LinearOperands::Role{"", unused, unused});
  }
  const bool value_serves = plain(plan_.activation) == weight->formats.value;
  const bool reads_value = smooths(plan) || (needs_plain_weight() && value_serves);
  weight->value_is_read = weight->value_is_read || reads_value;
  choose_gathered_form();
}

/// What is enough for this layer where ranks have parts of its weight.
void Linear::choose_gathered_form() {
  if (weight_->value_is_read || smoothed_w_) {
    return;
  }
  const bool scaled = w_.scaled_along_rows() || w_.scaled_along_columns();
  const ScalingSlot* const only = w_.only_slot();
  if (!scaled) {
    weight_->gathered = GatheredForm::copy;
    weight_->gathered_dtype = plan_.activation;
  } else if (only != nullptr && !needs_plain_weight()) {
    weight_->gathered = GatheredForm::codes;
    weight_->gathered_dtype = only->format.dtype;
  }
}

/// Evaluation may bypass the scaled formats, so that there is a plain weight wherever one GEMM can
/// ask for it.
bool Linear::needs_plain_weight() const {
  return !(w_.scaled_along_rows() || smoothed_w_) || !w_.scaled_along_columns() ||
         !plan_.evaluate_scaled;
}

void Linear::allocate(Device& device, ParameterStore& store) {
  check_device(device.traits());
  const bool is_weight = weight_->formats.is_master;
  const MemoryCategory category =
      is_weight ? MemoryCategory::weights : MemoryCategory::quantized_weights;
  const TensorFormat& kept = weight_->stored_value.format;
  const bool value_serves = !kept.is_scaled() && kept.dtype == plan_.activation;
  const LinearOperands::Memory memory = [&](DType dtype, const Shape& shape) {
    return store.operand_memory(device, *weight_, category, dtype, shape);
  };
  if (needs_plain_weight() && !value_serves && weight_->copy.empty()) {
    plain_copy_ = memory(plan_.activation, weight_->shape);
    weight_->copy = plain_copy_;
  }
  weight_casts_ = w_.place_all(device.traits(), weight_->shape, {memory, memory});
  for (LinearOperands::Cast& cast : weight_casts_) {
    if (!cast.codes.empty()) {
      // The scale at the time of the cast: the slot may move on.
      kept_scales_.emplace_back(device, DType::f32, Shape{2}, MemoryCategory::scaling_state);
      cast.codes.scale_inv = kept_scales_.back().view().as<float>();
    }
  }
  offer_weight_cast();
}

void Linear::check_device(const DeviceTraits& traits) const {
  for (const GemmPlan* gemm : {&plan_.fprop, &plan_.dgrad, &plan_.wgrad}) {
    const bool by_tensor = gemm->a.is_scaled() && gemm->a.granularity == Granularity::tensor &&
                           gemm->b.granularity == Granularity::tensor;
    if (by_tensor && !traits.tensor_scaled_gemm) {
      throw DeviceError(plan_.site.name +
                        ": this GPU's cuBLASLt does not multiply FP8 with one scale per tensor as "
                        "it should; use another release of it, or another row of the chart");
    }
  }
}

void Linear::offer_weight_cast() {
  if (weight_casts_.size() != 1 || weight_casts_.front().codes.empty() || !weight_->cast.empty() ||
      weight_->value.empty() || !weight_->updated.whole) {
    return;  // nothing to cast, casts with a scale for each granule, another layer's weight too, a
             // value that must be rounded before it is cast, or a part of it
  }
  const LinearOperands::Cast& cast = weight_casts_.front();
  const bool delayed = cast.slot->format.policy == ScalePolicy::delayed;
  if (!delayed && cast.slot->format.policy != ScalePolicy::current) {
    return;
  }
  optimizer_casts_ = true;
  weight_->cast.amax = cast.slot->amax;
  if (delayed) {
    weight_->cast.out = cast.codes;
    weight_->cast.statistics = cast.slot->statistics;
  }
}

LinearOperand Linear::weight_operand(bool scaled, bool along_columns) const {
  const ConstView plain = weight_->copy.empty() ? weight_->stored_value.codes : weight_->copy;
  if (!scaled) {
    return {.plain = plain, .codes = {}, .granules = {}, .along_columns = along_columns};
  }
  return w_.operand(weight_casts_, plain, along_columns);
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

View Linear::weight_value(const StepContext& context) const {
  if (!weight_->value.empty()) {
    return weight_->value;
  }
  const View value = fp8train::allocate(*context.scratch, DType::f32, weight_->shape);
  ops::read_stored(context.stream, weight_->stored_value, value);
  return value;
}

bool Linear::find_part_amax(const StepContext& context) const {
  if (weight_->updated.gathered.empty() || weight_->gathered != GatheredForm::codes) {
    return false;
  }
  const ScalingSlot& slot = *weight_casts_.front().slot;
  if (!LinearOperands::scales_now(context, slot.format)) {
    return false;
  }
  ops::fill(context.stream, {slot.amax, DType::f32, {1}}, 0.0F);
  if (weight_->updated.count() > 0) {
    ArenaScope scope(*context.scratch);
    ops::amax(context.stream, part_value(context), slot.amax);
  }
  return true;
}

void Linear::make_part(const StepContext& context) const {
  const Parameter::Updated& updated = weight_->updated;
  if (updated.gathered.empty()) {
    return;
  }
  ArenaScope scope(*context.scratch);
  const ConstView value = updated.count() > 0 ? part_value(context) : View{};
  if (weight_->gathered == GatheredForm::copy) {
    if (updated.count() > 0) {
      ops::cast(context.stream, value, updated.gathered);
    }
    return;
  }
  const LinearOperands::Cast& cast = weight_casts_.front();
  const ScalingSlot& slot = *cast.slot;
  const bool now = LinearOperands::scales_now(context, slot.format);
  if (now) {
    ops::compute_current_scale(context.stream, slot.amax, slot.format, slot.scale, slot.scale_inv);
  }
  ops::cast(context.stream, View{slot.scale_inv, DType::f32, {1}},
            View{cast.codes.scale_inv, DType::f32, {1}});
  if (updated.count() > 0) {
    ops::quantize(context.stream, value,
                  {.codes = updated.gathered, .scale = slot.scale, .format = slot.format},
                  now ? nullptr : slot.amax,
                  context.collect_statistics ? slot.statistics : nullptr);
    LinearOperands::sample(context, value, cast);
  }
}

/// In fp32: as it is, or read into scratch.
View Linear::part_value(const StepContext& context) const {
  const StoredTensor& part = weight_->updated.value;
  if (part.format == TensorFormat{}) {
    return part.codes;
  }
  const View value = fp8train::allocate(*context.scratch, DType::f32, {part.count()});
  ops::read_stored(context.stream, part, value);
  return value;
}

void Linear::turn_codes(const StepContext& context) const {
  for (const LinearOperands::Cast& cast : weight_casts_) {
    if (!cast.codes.codes_transposed.empty()) {
      ops::transpose_codes(context.stream, cast.codes.codes, cast.codes.codes_transposed);
    }
  }
}

void Linear::refresh_weight(const StepContext& context, Refresh what) {
  if (!weight_->updated.gathered.empty()) {
    return turn_codes(context);  // the rest has been gathered
  }
  const bool all = what != Refresh::after_update;
  const bool cast_by_optimizer = !all && optimizer_casts_;
  const bool cast_already = cast_by_optimizer && !weight_->cast.out.empty();
  if (cast_already && !context.collect_statistics) {
    return;
  }
  const bool copy = all && !plain_copy_.empty();
  if (!copy && weight_casts_.empty()) {
    return;
  }
  ArenaScope scope(*context.scratch);
  const View value = weight_value(context);
  if (copy) {
    ops::cast(context.stream, value, plain_copy_);
  }
  if (what == Refresh::again) {
    return cast_again(context, value);
  }
  for (const LinearOperands::Cast& cast : weight_casts_) {
    if (!cast_already) {
      LinearOperands::fill(context, value, cast, cast_by_optimizer);
    }
    if (!weight_->updated.whole && !cast.codes.empty()) {
      ops::cast(context.stream, View{cast.slot->scale, DType::f32, {1}}, kept_scale(cast));
    }
    LinearOperands::sample(context, value, cast);
  }
}

/// Records nothing, and does not ask what the scale would be now.
void Linear::cast_again(const StepContext& context, ConstView value) const {
  StepContext unrecorded = context;
  unrecorded.training = false;
  unrecorded.collect_statistics = false;
  for (const LinearOperands::Cast& cast : weight_casts_) {
    if (cast.codes.empty()) {
      LinearOperands::fill(unrecorded, value, cast, false);
      continue;
    }
    QuantizedView codes = cast.codes;
    codes.scale = kept_scale(cast).as<float>();
    ops::quantize(context.stream, value, codes, nullptr, nullptr);
  }
}

View Linear::kept_scale(const LinearOperands::Cast& cast) {
  return {cast.codes.scale_inv + 1, DType::f32, {1}};
}

LinearOperands::Wanted Linear::wanted_of_input(const StepContext& context) const {
  return {x_.scaled_along_rows() && (context.training || plan_.evaluate_scaled),
          x_.scaled_along_columns() && context.training};
}

Linear::Input Linear::place(const StepContext& context, const LinearOperands& operands,
                            const Shape& shape, LinearOperands::Wanted wanted, Arena& kept,
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
    ops::fill(context.stream, {slot.amax, DType::f32, {1}}, 0.0F);
    input.cast.amax = slot.amax;
    return input;
  }
  const LinearOperands::Places places = {memory_of(*context.scratch), memory_of(kept)};
  input.cast = {.out = operands.place(context.device->traits(), &slot, shape, wanted, places).codes,
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
  Arena* const plain = context.training && keeps_input() ? context.saved : context.scratch;
  Input input = place(context, x_, {rows, plan_.site.in_features}, wanted, *context.saved,
                      codes_suffice ? nullptr : plain);
  if (smooths(plan_) && wanted.along_rows) {
    input.smoothing = fp8train::allocate(context.training ? *context.saved : *context.scratch,
                                         DType::f32, {plan_.site.in_features});
  }
  return input;
}

Linear::Input Linear::place_gradient(const StepContext& context, int64_t rows) const {
  const ScalingSlot* slot = dy_.slot_for_producer(kBoth);
  const bool codes_suffice = slot != nullptr && writes_codes_at_once(context, *slot) &&
                             dy_.codes_suffice(slot) && !context.collect_statistics &&
                             bias_ == nullptr;
  return place(context, dy_, {rows, plan_.site.out_features}, kBoth, *context.scratch,
               codes_suffice ? nullptr : context.scratch);
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
                     .fast_accumulate = plan_.fprop.fast_accumulate});
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
  const LinearOperands::Pair operands = dy_.make(context, dy, kBoth, {scratch, scratch});
  if (!dx.empty()) {
    multiply(context, {.a = operands.along_rows,
                       .b = weight_operand(w_.scaled_along_columns(), true),
                       .c = dx,
                       .fast_accumulate = plan_.dgrad.fast_accumulate});
  }
  add_weight_gradient(context, operands.along_columns, saved);
  if (bias_ != nullptr) {
    const int64_t rows = dy.plain.shape.rows();
    const View partial =
        fp8train::allocate(*context.scratch, DType::f32,
                           {(rows + kBiasChunk - 1) / kBiasChunk, dy.plain.shape.back()});
    ops::bias_backward(context.stream, dy.plain, bias_->gradient, partial);
  }
}

void Linear::add_weight_gradient(const StepContext& context, const LinearOperand& dy,
                                 const Saved& x) const {
  if (!weight_->gradient.empty() && x.smoothing.empty()) {  // straight into the buffer
    multiply(context, {.a = dy,
                       .b = x.x,
                       .c = weight_->gradient,
                       .beta = 1.0F,
                       .fast_accumulate = plan_.wgrad.fast_accumulate});
    return;
  }
  ArenaScope scope(*context.scratch);
  const View product = fp8train::allocate(*context.scratch, DType::f32, weight_->shape);
  multiply(context,
           {.a = dy, .b = x.x, .c = product, .fast_accumulate = plan_.wgrad.fast_accumulate});
  if (!x.smoothing.empty()) {
    const bool add = !weight_->gradient.empty();
    ops::divide_columns(context.stream, product, x.smoothing, add ? weight_->gradient : product,
                        add);
    if (add) {
      return;
    }
  }
  ops::store(
      context.stream,
      {.x = product, .to = weight_->stored_gradient, .add = true, .automatic = weight_->automatic});
}

}  // namespace fp8train
