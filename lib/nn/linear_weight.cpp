#include "nn/linear_weight.h"

#include <algorithm>

#include "base/error.h"
#include "base/key_error.h"
#include "nn/cast_error.h"
#include "ops/cast/blockwise_parts.h"
#include "ops/cast/quantize.h"
#include "ops/cast/scale_blocks.h"
#include "ops/gemm/gemm_support.h"
#include "ops/gemm/planned_gemm.h"
#include "ops/pointwise/elementwise.h"
#include "ops/pointwise/smoothing.h"

namespace fp8train {
namespace {

Cut cut_of_weight(const LinearPlan& plan) {
  const LinearSite& site = plan.site;
  return site.split == Split::none      ? Cut{}
         : site.split == Split::columns ? Cut{Cut::rows, site.pieces()}
                                        : Cut{Cut::columns, {site.in_features}};
}

/// fprop's weight operand as it is made once per step: none, where it is another one in each pass.
QuantizedInput::Role weight_of_fprop(const LinearPlan& plan) {
  const TensorFormat activation = plain(plan.activation);
  return plan.is_smoothed()
             ? QuantizedInput::Role{"w", activation, activation, false, cut_of_weight(plan)}
             : QuantizedInput::Role{"w", plan.fprop.b, plan.fprop.a, false, cut_of_weight(plan)};
}

/// Codes with scales of square blocks, `grid` of them, transposed in scratch.
Encoded transposed_blocks(const StepContext& context, const Encoded& part, const Shape& grid) {
  const View codes = allocate(*context.scratch, part.codes.dtype,
                              {part.codes.shape.back(), part.codes.shape.rows()});
  ops::transpose_codes(context.stream, part.codes, codes);
  const View scales = allocate(*context.scratch, DType::f32, {grid.back(), grid.rows()});
  for (int64_t column = 0; column < grid.back(); ++column) {
    ops::copy_columns(context.stream, reshaped(part.scales, grid), column,
                      reshaped(rows_of(scales, column, 1), {grid.rows(), 1}));
  }
  return {codes, part.format, reshaped(scales, {scales.count()})};
}

}  // namespace

LinearWeight::LinearWeight(const LinearPlan& plan, Parameter* weight, ScalingState& scaling)
    : plan_(plan),
      weight_(weight),
      w_(scaling, plan.site.name, weight_of_fprop(plan),
         {"w.dgrad", plan.dgrad.b, plan.dgrad.a, false}, plan.evaluate_scaled) {
  choose_gathered_form();
}

void LinearWeight::add_smoothed(ScalingState& scaling) {
  if (plan_.is_smoothed()) {
    const TensorFormat unused = plain(plan_.activation);
    smoothed_w_.emplace(
        scaling, plan_.site.name,
        QuantizedInput::Role{"w.smooth", plan_.fprop.b, plan_.fprop.a, false, cut_of_weight(plan_)},
        QuantizedInput::Role{"", unused, unused, false}, plan_.evaluate_scaled);
  }
}

ops::GemmOperand LinearWeight::fprop_operand(const StepContext& context,
                                             ConstView smoothing) const {
  return smoothing.empty() ? weight_operand(context, Along::rows)
                           : smoothed_weight(context, smoothing);
}

ops::GemmOperand LinearWeight::dgrad_operand(const StepContext& context) const {
  return weight_operand(context, Along::columns);
}

ops::GemmOperand LinearWeight::smoothed_weight(const StepContext& context,
                                               ConstView smoothing) const {
  const View divided = fp8train::allocate(*context.scratch, DType::f32, weight_->shape);
  {
    ArenaScope scope(*context.scratch);
    ops::divide_columns(context.stream, weight_value(context), smoothing, divided, false);
  }
  return smoothed_w_->operands(context, divided, {context.scratch, nullptr}).along_rows;
}

/// Chooses the smallest form that is enough for this layer if ranks have parts of its weight.
void LinearWeight::choose_gathered_form() {
  // Where no GEMM reads codes, ranks can gather the upper halves of a master in two halves alone.
  const bool scaled = is_scaled(Along::rows) || is_scaled(Along::columns);
  const bool upper_half = weight_->formats.value.remainder && !scaled;
  Gathering& gathered = weight_->gathered;
  if (gathered.form == GatheredForm::value || plan_.is_smoothed() ||
      (needs_plain_weight() && value_serves() && !upper_half)) {
    gathered = {};
    return;
  }
  const ScalingSlot* const only = w_.only_slot();
  if (!scaled) {
    gathered = {.form = GatheredForm::copy, .dtype = plan_.activation};
  } else if (only != nullptr && !needs_plain_weight()) {
    gathered = {.form = GatheredForm::codes, .dtype = only->format.dtype};
    if (only->format.block != per::tensor) {
      const Shape& shape = weight_->shape;
      gathered.blocks = ops::block_grid(only->format.block, shape.rows(), shape.back()).count;
    }
  }
}

/// Evaluation and stages of the run may bypass the scaled formats, so that there is a plain weight
/// wherever one GEMM can ask for it.
bool LinearWeight::needs_plain_weight() const {
  return !(is_scaled(Along::rows) || plan_.is_smoothed()) || !is_scaled(Along::columns) ||
         !plan_.evaluate_scaled || plan_.has_plain_stages;
}

void LinearWeight::allocate(Device& device, ParameterStore& store, bool trains,
                            bool runs_backward) {
  check_device(device);
  if (code_scales_ != nullptr) {
    return;
  }
  const bool is_weight = weight_->formats.is_master;
  const MemoryCategory category =
      is_weight ? MemoryCategory::weights : MemoryCategory::quantized_weights;
  const auto memory = [&](DType dtype, const Shape& shape) {
    return store.operand_memory(device, *weight_, category, dtype, shape);
  };
  const bool gathers_halves = holds_gathered(*weight_) && weight_->stored_value.empty();
  if (needs_plain_weight() && (!value_serves() || gathers_halves) && weight_->copy.empty()) {
    plain_copy_ = memory(plan_.activation, weight_->shape);
    weight_->copy = plain_copy_;
  }
  weight_casts_ = w_.casts(device.traits(), weight_->shape);
  for (TensorCast& cast : weight_casts_) {
    cast.allocate(memory, memory);
    if (!blockwise(cast.codes.format())) {
      // The scale at the time of the cast: the slot may move on.
      stored_scales_.emplace_back(device, DType::f32, Shape{2}, MemoryCategory::scaling_state);
      cast.codes.set(&Encoded::tensor_scale, stored_scales_.back().view().as<float>());
    }
  }
  offer_weight_cast();
  allocate_packed(device, store, trains, trains && runs_backward);
}

void LinearWeight::check_device(const Device& device) const {
  for (const GemmPlan* gemm : plan_.gemms()) {
    if (gemm->emulate_accumulator && device.traits().fp8_gemm_by_library) {
      throw Keyed<DeviceError>("fp8.accumulation",
                               ": emulated is for device: cpu; a GPU has the accumulator");
    }
  }
  const DeviceTraits& traits = device.traits();
  // The extents that do not depend on the batch; 0 for the number of rows.
  const auto check_gemm = [&](const GemmPlan& gemm, DType result, int64_t m, int64_t n, int64_t k) {
    const ops::GemmSupport support =
        ops::gemm_support(traits, {gemm.a, gemm.b, result, gemm.fast_accumulate}, {m, n, k});
    if (!support.native && !support.dequantized) {
      throw DeviceError(
          plan_.site.name + ": " + std::string(name_of(gemm.a.dtype)) + " x " +
          std::string(name_of(gemm.b.dtype)) + " to " + std::string(name_of(result)) +
          " with one scale for each tensor: " + std::string(support.reason) +
          "; use another plan, or where the GPU has FP8 units another release of cuBLAS");
    }
  };
  const int64_t out = plan_.site.out_features;
  const int64_t in = plan_.site.in_features;
  check_gemm(plan_.fprop, plan_.activation, 0, out, in);
  check_gemm(plan_.dgrad, plan_.activation, 0, in, out);
  if (weight_->trained) {
    check_gemm(plan_.wgrad, DType::f32, out, in, 0);
  }
}

void LinearWeight::offer_weight_cast() {
  if (!weight_->trained || weight_casts_.size() != 1 ||
      blockwise(weight_casts_.front().codes.format()) || !weight_->cast.empty() ||
      weight_->value.empty() || !weight_->updated.whole) {
    return;  // no update, nothing to cast, casts with a scale for each block, another layer's
             // weight too, a value that must be rounded before it is cast, or a part of it
  }
  const TensorCast& cast = weight_casts_.front();
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

ops::GemmOperand LinearWeight::weight_operand(const StepContext& context, Along along) const {
  if (code_scales_ != nullptr) {
    return operand_of_codes(context, along);
  }
  const bool of_codes = w_.reads_codes(context, along);
  ops::GemmOperand operand = made_operand(along, of_codes);
  const auto packed = std::ranges::find_if(packed_, [&](const Packed& form) {
    return form.along == along && form.of_codes == of_codes;
  });
  if (packed != packed_.end()) {
    operand.packed = packed->memory;
  }
  return operand;
}

/// As refresh() makes it.
ops::GemmOperand LinearWeight::made_operand(Along along, bool of_codes) const {
  if (of_codes) {
    const auto cast = std::ranges::find(weight_casts_, w_.slot(along), &TensorCast::slot);
    return cast->operand(along);
  }
  return {weight_->copy.empty() ? weight_->stored_value.codes : weight_->copy,
          along == Along::columns};
}

View LinearWeight::weight_value(const StepContext& context) const {
  if (code_scales_ != nullptr) {
    return decoded(context, DType::f32);
  }
  if (!weight_->value.empty()) {
    return weight_->value;
  }
  const View value = fp8train::allocate(*context.scratch, DType::f32, weight_->shape);
  ops::read_stored(context.stream, weight_->stored_value, value);
  return value;
}

bool LinearWeight::find_part_amax(const StepContext& context) const {
  if (weight_->updated.gathered.empty() || weight_->gathered.form != GatheredForm::codes) {
    return false;
  }
  const ScalingSlot& slot = *weight_casts_.front().slot;
  if (!weight_->updated.block_amax.empty()) {
    ArenaScope scope(*context.scratch);
    ops::blockwise_part_amax(context.stream,
                             {part_value(context), weight_->updated.first, weight_->shape},
                             slot.format.block, weight_->updated.block_amax);
    return false;
  }
  if (!slot.scales_now) {
    return false;
  }
  ops::fill(context.stream, {slot.amax, DType::f32, {1}}, 0.0F);
  if (weight_->updated.count() > 0) {
    ArenaScope scope(*context.scratch);
    ops::amax(context.stream, part_value(context), slot.amax);
  }
  return true;
}

void LinearWeight::agree_on_rows(const StepContext& context) const {
  const bool are_cut = plan_.site.split == Split::rows && context.tensor_ranks != nullptr;
  if (are_cut && !weight_->updated.block_amax.empty() &&
      weight_casts_.front().codes.format().block == per::row) {
    context.tensor_ranks->largest(context, weight_->updated.block_amax);
  }
}

void LinearWeight::make_part(const StepContext& context) const {
  const Parameter::Updated& updated = weight_->updated;
  if (updated.gathered.empty() || holds_gathered(*weight_)) {
    return;
  }
  ArenaScope scope(*context.scratch);
  const ConstView value = part_value(context);
  if (weight_->gathered.form == GatheredForm::copy) {
    if (updated.count() > 0) {
      ops::cast(context.stream, value, updated.gathered);
    }
    return;
  }
  if (!weight_->updated.block_amax.empty()) {
    return make_part_of_blocks(context, value);
  }
  const TensorCast& cast = weight_casts_.front();
  const ScalingSlot& slot = *cast.slot;
  if (slot.scales_now) {
    ops::compute_current_scale(context.stream, slot.amax, slot.format, slot.scale, slot.scale_inv);
  }
  ops::cast(context.stream, View{slot.scale_inv, DType::f32, {1}},
            View{cast.codes.either().tensor_scale, DType::f32, {1}});
  if (updated.count() > 0) {
    Encoded part(updated.gathered, slot.format);
    part.cast_scales = slot.scale;
    ops::quantize(context.stream, value, {part}, slot.scales_now ? nullptr : slot.amax,
                  context.collect_statistics ? slot.statistics : nullptr);
    cast.fill_sample(context, value);
  }
}

void LinearWeight::make_part_of_blocks(const StepContext& context, ConstView value) const {
  const Parameter::Updated& updated = weight_->updated;
  const ScalingSlot& slot = *weight_casts_.front().slot;
  if (context.training) {  // ScalingState::update learns of infinities from it
    ops::amax(context.stream, weight_->updated.block_amax, slot.amax);
  }
  if (updated.count() == 0) {
    return;
  }
  const bool collects = context.collect_statistics;
  const View rounded =
      collects ? fp8train::allocate(*context.scratch, DType::f32, {updated.count()}) : View{};
  ops::quantize_blockwise_part(context.stream,
                               {.x = {value, updated.first, weight_->shape},
                                .format = slot.format,
                                .amax = weight_->updated.block_amax,
                                .codes = updated.gathered,
                                .rounded = rounded,
                                .statistics = collects ? slot.statistics : nullptr});
  if (collects) {
    sample_rounded(context, value, rounded, slot);
  }
}

/// In fp32: as it is, or read into scratch; empty where this rank has none of it.
View LinearWeight::part_value(const StepContext& context) const {
  const Encoded& part = weight_->updated.value;
  if (part.count() == 0) {
    return {nullptr, DType::f32, {0}};
  }
  if (part.format == TensorFormat{}) {
    return part.codes;
  }
  const View value = fp8train::allocate(*context.scratch, DType::f32, {part.count()});
  ops::read_stored(context.stream, part, value);
  return value;
}

void LinearWeight::refresh_operands(const StepContext& context, Refresh what) {
  if (code_scales_ != nullptr) {
    return;
  }
  if (!weight_->updated.gathered.empty()) {
    for (const TensorCast& cast : weight_casts_) {  // the rest has been gathered
      cast.complete(context, weight_->updated.block_amax);
    }
    return;
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
  for (const TensorCast& cast : weight_casts_) {
    if (!cast_already) {
      cast.quantize(context, value, cast_by_optimizer);
    }
    if (!weight_->updated.whole && !blockwise(cast.codes.format())) {
      ops::cast(context.stream, View{cast.slot->scale, DType::f32, {1}}, scale_storage(cast));
    }
    cast.fill_sample(context, value);
  }
}

/// Records nothing, and does not ask what the scale would be now.
void LinearWeight::cast_again(const StepContext& context, ConstView value) const {
  StepContext unrecorded = context;
  unrecorded.training = false;
  unrecorded.collect_statistics = false;
  for (const TensorCast& cast : weight_casts_) {
    if (blockwise(cast.codes.format())) {
      cast.quantize(unrecorded, value, false);
      continue;
    }
    QuantizedTensor codes = cast.codes;
    codes.set(&Encoded::cast_scales, scale_storage(cast).as<float>());
    ops::quantize(context.stream, value, codes, nullptr, nullptr);
  }
}

View LinearWeight::scale_storage(const TensorCast& cast) {
  return {cast.codes.either().tensor_scale + 1, DType::f32, {1}};
}

void LinearWeight::set_codes(const Parameter* scales, const TensorFormat& format) {
  code_scales_ = scales;
  code_format_ = format;
  weight_->gathered = {};
}

Encoded LinearWeight::codes() const {
  const View& bytes = weight_->stored_value.codes;
  return {{bytes.data, code_format_.dtype, weight_->shape},
          code_format_,
          reshaped(code_scales_->value, {code_scales_->shape.count()})};
}

View LinearWeight::decoded(const StepContext& context, DType type) const {
  const View values = fp8train::allocate(*context.scratch, type, weight_->shape);
  ops::dequantize(context.stream, codes(), values);
  return values;
}

ops::GemmOperand LinearWeight::operand_of_codes(const StepContext& context, Along along) const {
  const bool transposed = along == Along::columns;
  if (!w_.reads_codes(context, along)) {
    return {decoded(context, plan_.activation), transposed};
  }
  const TensorFormat& format = w_.slot(along)->format;
  const bool as_they_are =
      format.dtype == code_format_.dtype && format.block == code_format_.block &&
      dtype_of(format.scale_type) == DType::f32 && (!transposed || format.block.is_square()) &&
      !context.device->traits().fp8_gemm_by_library;
  if (as_they_are) {
    Encoded as_read =
        transposed ? transposed_blocks(context, codes(), code_scales_->shape) : codes();
    as_read.format = format;
    return as_read;
  }
  const View values = decoded(context, DType::f32);
  const QuantizedInput::Operands made =
      transposed ? w_.operands(context, values, {nullptr, context.scratch})
                 : w_.operands(context, values, {context.scratch, nullptr});
  return transposed ? made.along_columns : made.along_rows;
}

void LinearWeight::allocate_packed(Device& device, ParameterStore& store, bool trains,
                                   bool runs_backward) {
  for (const Along along : {Along::rows, Along::columns}) {
    const bool of_codes =
        is_scaled(along) && (along == Along::columns || trains || plan_.evaluate_scaled);
    const GemmPlan& gemm = along == Along::rows ? plan_.fprop : plan_.dgrad;
    const bool is_read = along == Along::rows ? !plan_.is_smoothed() : runs_backward;
    // Next to a plain operand codes are read as values, for a short accumulator in its order.
    if (!is_read || (of_codes && (!gemm.a.is_scaled() || gemm.emulate_accumulator))) {
      continue;
    }
    ops::GemmOperand b = made_operand(along, of_codes);
    b.transposed = !b.transposed;  // as multiply() calls it
    const auto bytes = static_cast<int64_t>(ops::packed_bytes(device.traits(), b));
    if (bytes > 0) {
      const View memory = store.operand_memory(device, *weight_, MemoryCategory::quantized_weights,
                                               DType::u8, {bytes});
      packed_.push_back({along, of_codes, memory});
    }
  }
}

/// A frozen weight does not change with an update.
void LinearWeight::pack(const StepContext& context, Refresh what) const {
  if (what == Refresh::after_update && !weight_->trained) {
    return;
  }
  for (const Packed& packed : packed_) {
    ops::GemmOperand b = made_operand(packed.along, packed.of_codes);
    b.transposed = !b.transposed;
    ops::pack_planned(context.stream, *context.scratch, b, packed.memory);
  }
}

}  // namespace fp8train
