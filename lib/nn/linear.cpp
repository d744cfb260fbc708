#include "nn/linear.h"

#include "base/error.h"
#include "ops/elementwise.h"
#include "ops/gemm.h"
#include "ops/quantize.h"

namespace fp8train {
namespace {

constexpr int64_t kBiasChunk = 64;

/// x (or its transpose) as a GEMM's first operand: [M, K] with K contiguous where the transposed
/// codes were made.
ops::GemmOperand left(const QuantizedView& x, bool transposed) {
  if (transposed && !x.codes_transposed.empty()) {
    return {x.codes_transposed, false, x.scale_inv};
  }
  return {x.codes, transposed, x.scale_inv};
}

/// As the second operand, [K, N]: contiguous along K means that its transpose is stored.
ops::GemmOperand right(const QuantizedView& x, bool transposed) {
  if (!transposed && !x.codes_transposed.empty()) {
    return {x.codes_transposed, true, x.scale_inv};
  }
  return {x.codes, transposed, x.scale_inv};
}

bool along_k_only(const StepContext& context) {
  return context.device->traits().fp8_gemm_along_k_only;
}

View allocate_where_wanted(Arena* arena, DType dtype, const Shape& shape) {
  return arena == nullptr ? View{} : allocate(*arena, dtype, shape);
}

/// The slot of a GEMM's operand, shared with `first` when the formats agree; null for a plain
/// format.
const ScalingSlot* slot_for(ScalingState& scaling, const LinearPlan& plan, const char* role,
                            const TensorFormat& format, const ScalingSlot* first) {
  if (!format.is_scaled()) {
    return nullptr;
  }
  if (first != nullptr && first->format == format) {
    return first;
  }
  return scaling.add(plan.site.name, role, format);
}

/// Memory for the codes of a tensor of `shape`; null: this orientation is not wanted.
QuantizedView codes_in(Arena* codes, Arena* transposed, const Shape& shape,
                       const ScalingSlot& slot) {
  const DType dtype = slot.format.dtype;
  return {
      .codes = allocate_where_wanted(codes, dtype, shape),
      .codes_transposed = allocate_where_wanted(transposed, dtype, {shape.back(), shape.rows()}),
      .scale = slot.scale,
      .scale_inv = slot.scale_inv,
      .format = slot.format};
}

}  // namespace

Linear::Linear(const LinearPlan& plan, Parameter* weight, Parameter* bias, ScalingState& scaling)
    : plan_(plan), weight_(weight), bias_(bias) {
  for (const GemmPlan* gemm : {&plan_.fprop, &plan_.dgrad, &plan_.wgrad}) {
    check(gemm->a.is_scaled() == gemm->b.is_scaled(),
          "a GEMM has one scaled and one plain operand");
  }
  check(!plan_.fprop.b.is_scaled() || !plan_.dgrad.b.is_scaled() || plan_.fprop.b == plan_.dgrad.b,
        "fprop and dgrad read the weight in one scaled format");
  const bool dgrad_only = !plan_.fprop.b.is_scaled();
  x_slot_ = slot_for(scaling, plan_, "x", plan_.fprop.a, nullptr);
  x_wgrad_slot_ = slot_for(scaling, plan_, "x.wgrad", plan_.wgrad.b, x_slot_);
  w_slot_ = slot_for(scaling, plan_, "w", dgrad_only ? plan_.dgrad.b : plan_.fprop.b, nullptr);
  dy_slot_ = slot_for(scaling, plan_, "dy", plan_.dgrad.a, nullptr);
  dy_wgrad_slot_ = slot_for(scaling, plan_, "dy.wgrad", plan_.wgrad.a, dy_slot_);
}

void Linear::allocate(Device& device, MemoryCategory plain_copies) {
  // Evaluation may bypass the scaled formats, so the plain copy exists wherever one GEMM can ask
  // for it.
  const bool needs_plain =
      !plan_.fprop.b.is_scaled() || !plan_.dgrad.b.is_scaled() || !plan_.evaluate_scaled;
  if (needs_plain && plan_.activation != DType::f32 && weight_->copy.empty()) {
    plain_copy_ = Tensor(device, plan_.activation, weight_->shape, plain_copies);
    weight_->copy = plain_copy_;
  }
  if (w_slot_ != nullptr) {
    codes_ =
        Tensor(device, w_slot_->format.dtype, weight_->shape, MemoryCategory::quantized_weights);
    if (device.traits().fp8_gemm_along_k_only && plan_.dgrad.b.is_scaled()) {
      codes_transposed_ =
          Tensor(device, w_slot_->format.dtype, {weight_->shape.back(), weight_->shape.rows()},
                 MemoryCategory::quantized_weights);
    }
    codes_scale_inv_ = Tensor(device, DType::f32, {1}, MemoryCategory::scaling_state);
    offer_weight_cast();
  }
}

void Linear::offer_weight_cast() {
  const TensorFormat& format = w_slot_->format;
  const bool delayed = format.policy == ScalePolicy::delayed;
  const bool has_amax = delayed || format.policy == ScalePolicy::current;
  if (!weight_->cast.empty() || format.granularity != Granularity::tensor || !has_amax) {
    return;
  }
  optimizer_casts_ = true;
  weight_->cast.amax = w_slot_->amax;
  if (delayed) {
    weight_->cast.out = weight_codes();
    weight_->cast.statistics = w_slot_->statistics;
  }
}

ConstView Linear::plain_weight() const {
  return weight_->copy.empty() ? ConstView(weight_->value) : ConstView(weight_->copy);
}

bool Linear::scaled(const StepContext& context, const TensorFormat& format) const {
  return format.is_scaled() && (context.training || plan_.evaluate_scaled);
}

void Linear::refresh_weight(const StepContext& context, bool all) {
  if (all && !plain_copy_.empty()) {
    ops::cast(context.stream, weight_->value, plain_copy_);
  }
  const bool cast_by_optimizer = !all && optimizer_casts_;
  if (w_slot_ == nullptr || (cast_by_optimizer && !weight_->cast.out.empty())) {
    return;
  }
  const QuantizedView out = weight_codes();
  if (w_slot_->format.policy == ScalePolicy::current) {
    if (!cast_by_optimizer) {
      ops::amax(context.stream, weight_->value, w_slot_->amax);
    }
    ops::compute_current_scale(context.stream, w_slot_->amax, w_slot_->format, w_slot_->scale,
                               w_slot_->scale_inv);
  }
  const bool delayed = w_slot_->format.policy == ScalePolicy::delayed;
  ops::quantize(context.stream, weight_->value, out, delayed ? w_slot_->amax : nullptr,
                context.collect_statistics ? w_slot_->statistics : nullptr);
}

QuantizedView Linear::weight_codes() const {
  return {.codes = codes_.view(),
          .codes_transposed = codes_transposed_.empty() ? View{} : codes_transposed_.view(),
          .scale = w_slot_->scale,
          .scale_inv = codes_scale_inv_.view().as<float>(),
          .format = w_slot_->format};
}

Linear::CodePlaces Linear::input_places(const StepContext& context, const ScalingSlot* slot) const {
  const bool for_fprop = slot == x_slot_ && scaled(context, plan_.fprop.a);
  const bool for_wgrad = context.training && slot == x_wgrad_slot_;
  if (!for_wgrad) {
    return {context.scratch, nullptr};
  }
  if (!along_k_only(context)) {
    return {context.saved, nullptr};
  }
  return {for_fprop ? context.scratch : nullptr, context.saved};
}

Linear::CodePlaces Linear::gradient_places(const StepContext& context,
                                           const ScalingSlot* slot) const {
  const bool turned = slot == dy_wgrad_slot_ && along_k_only(context);
  return {slot == dy_slot_ || !turned ? context.scratch : nullptr,
          turned ? context.scratch : nullptr};
}

Linear::Input Linear::place(const StepContext& context, const Shape& shape, const ScalingSlot* slot,
                            const CodePlaces& places, Arena* plain) const {
  Input input;
  input.slot = slot;
  input.plain = {nullptr, plan_.activation, shape};
  if (plain != nullptr) {
    input.plain = fp8train::allocate(*plain, plan_.activation, shape);
  }
  if (slot == nullptr) {
    return input;
  }
  if (slot->format.policy == ScalePolicy::current) {
    ops::fill(context.stream, {slot->amax, DType::f32, {1}}, 0.0F);
    input.cast.amax = slot->amax;
    return input;
  }
  input.cast = {.out = codes_in(places.codes, places.transposed, shape, *slot),
                .amax = context.training ? slot->amax : nullptr,
                .statistics = context.collect_statistics ? slot->statistics : nullptr};
  return input;
}

Linear::Input Linear::place_input(const StepContext& context, int64_t rows) const {
  const bool fprop_scaled = scaled(context, plan_.fprop.a);
  const ScalingSlot* slot = fprop_scaled ? x_slot_ : (context.training ? x_wgrad_slot_ : nullptr);
  const bool codes_suffice = slot != nullptr && slot->format.policy == ScalePolicy::delayed &&
                             fprop_scaled && (!context.training || x_wgrad_slot_ == slot);
  Arena* const plain = context.training && keeps_input() ? context.saved : context.scratch;
  return place(context, {rows, plan_.site.in_features}, slot, input_places(context, slot),
               codes_suffice ? nullptr : plain);
}

Linear::Input Linear::place_gradient(const StepContext& context, int64_t rows) const {
  const ScalingSlot* slot = dy_slot_ != nullptr ? dy_slot_ : dy_wgrad_slot_;
  const bool codes_suffice = slot != nullptr && slot->format.policy == ScalePolicy::delayed &&
                             slot == dy_slot_ && slot == dy_wgrad_slot_ && bias_ == nullptr;
  return place(context, {rows, plan_.site.out_features}, slot, gradient_places(context, slot),
               codes_suffice ? nullptr : context.scratch);
}

QuantizedView Linear::quantize(const StepContext& context, const Operand& x,
                               const ScalingSlot& slot, const CodePlaces& places) const {
  const bool made = x.slot == &slot;
  if (made && !x.codes.empty()) {
    return x.codes;
  }
  const QuantizedView out = codes_in(places.codes, places.transposed, x.plain.shape, slot);
  if (slot.format.policy == ScalePolicy::current) {
    if (!made) {
      ops::amax(context.stream, x.plain, slot.amax);
    }
    ops::compute_current_scale(context.stream, slot.amax, slot.format, slot.scale, slot.scale_inv);
  }
  const bool record = context.training && slot.format.policy == ScalePolicy::delayed;
  ops::quantize(context.stream, x.plain, out, record ? slot.amax : nullptr,
                context.collect_statistics ? slot.statistics : nullptr);
  return out;
}

void Linear::forward(const StepContext& context, ConstView x, View y, Saved& saved) const {
  run_forward(context, {.plain = x, .slot = nullptr, .codes = {}}, y, saved);
}

void Linear::forward(const StepContext& context, const Input& x, View y, Saved& saved) const {
  run_forward(context, {.plain = x.plain, .slot = x.slot, .codes = x.cast.out}, y, saved);
}

void Linear::run_forward(const StepContext& context, const Operand& x, View y, Saved& saved) const {
  saved = {};
  ArenaScope scope(*context.scratch);
  ops::Gemm fprop = {.a = {x.plain}, .b = {plain_weight(), true}, .c = y};
  const bool quantized_wgrad = context.training && x_wgrad_slot_ != nullptr;
  const bool turn = along_k_only(context);
  const auto keep = [&](const QuantizedView& codes) {
    saved.codes = codes;
    saved.codes.codes = turn ? View{} : codes.codes;  // only what lies in `saved` stays
  };
  if (scaled(context, plan_.fprop.a)) {
    const QuantizedView codes = quantize(context, x, *x_slot_, input_places(context, x_slot_));
    fprop.a = left(codes, false);
    fprop.b = right(weight_codes(), true);
    if (quantized_wgrad && x_wgrad_slot_ == x_slot_) {
      keep(codes);
    }
  }
  fprop.bias = bias_ == nullptr ? ConstView{} : ConstView(bias_->value);
  fprop.fast_accumulate = plan_.fprop.fast_accumulate;
  ops::gemm(context.stream, fprop);
  if (quantized_wgrad && saved.codes.empty()) {
    keep(quantize(context, x, *x_wgrad_slot_, input_places(context, x_wgrad_slot_)));
  } else if (context.training && saved.codes.empty()) {
    saved.x = x.plain;
  }
}

void Linear::backward(const StepContext& context, ConstView dy, View dx, const Saved& saved) const {
  run_backward(context, {.plain = dy, .slot = nullptr, .codes = {}}, dx, saved);
}

void Linear::backward(const StepContext& context, const Input& dy, View dx,
                      const Saved& saved) const {
  run_backward(context, {.plain = dy.plain, .slot = dy.slot, .codes = dy.cast.out}, dx, saved);
}

void Linear::run_backward(const StepContext& context, const Operand& dy, View dx,
                          const Saved& saved) const {
  ArenaScope scope(*context.scratch);
  QuantizedView dy_codes;
  if (dy_slot_ != nullptr) {
    dy_codes = quantize(context, dy, *dy_slot_, gradient_places(context, dy_slot_));
  }
  if (!dx.empty()) {
    ops::Gemm dgrad = {.a = {dy.plain}, .b = {plain_weight(), false}, .c = dx};
    if (dy_slot_ != nullptr) {
      dgrad.a = left(dy_codes, false);
      dgrad.b = right(weight_codes(), false);
    }
    dgrad.fast_accumulate = plan_.dgrad.fast_accumulate;
    ops::gemm(context.stream, dgrad);
  }
  // dW[N, K] += dy^T x, straight into the gradient buffer.
  ops::Gemm wgrad = {.a = {dy.plain, true}, .b = {saved.x}, .c = weight_->gradient, .beta = 1.0F};
  if (dy_wgrad_slot_ != nullptr) {
    const QuantizedView codes =
        dy_wgrad_slot_ == dy_slot_
            ? dy_codes
            : quantize(context, dy, *dy_wgrad_slot_, gradient_places(context, dy_wgrad_slot_));
    wgrad.a = left(codes, true);
    wgrad.b = right(saved.codes, false);
  }
  wgrad.fast_accumulate = plan_.wgrad.fast_accumulate;
  ops::gemm(context.stream, wgrad);
  if (bias_ != nullptr) {
    const int64_t rows = dy.plain.shape.rows();
    const View partial =
        fp8train::allocate(*context.scratch, DType::f32,
                           {(rows + kBiasChunk - 1) / kBiasChunk, dy.plain.shape.back()});
    ops::bias_backward(context.stream, dy.plain, bias_->gradient, partial);
  }
}

}  // namespace fp8train
