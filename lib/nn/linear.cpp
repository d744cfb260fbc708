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
  }
}

ConstView Linear::plain_weight() const {
  return weight_->copy.empty() ? ConstView(weight_->value) : ConstView(weight_->copy);
}

bool Linear::scaled(const StepContext& context, const TensorFormat& format) const {
  return format.is_scaled() && (context.training || plan_.evaluate_scaled);
}

void Linear::refresh_weight(const StepContext& context, bool make_plain_copy) {
  if (make_plain_copy && !plain_copy_.empty()) {
    ops::cast(context.stream, weight_->value, plain_copy_);
  }
  if (w_slot_ == nullptr) {
    return;
  }
  const QuantizedView out = weight_codes();
  if (w_slot_->format.policy == ScalePolicy::current) {
    ops::amax(context.stream, weight_->value, w_slot_->amax);
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

QuantizedView Linear::quantize(const StepContext& context, ConstView x, const ScalingSlot& slot,
                               Arena& arena, Arena* transposed) const {
  const Shape turned = {x.shape.back(), x.shape.rows()};
  const QuantizedView out = {
      .codes = fp8train::allocate(arena, slot.format.dtype, x.shape),
      .codes_transposed = transposed == nullptr
                              ? View{}
                              : fp8train::allocate(*transposed, slot.format.dtype, turned),
      .scale = slot.scale,
      .scale_inv = slot.scale_inv,
      .format = slot.format};
  if (slot.format.policy == ScalePolicy::current) {
    ops::amax(context.stream, x, slot.amax);
    ops::compute_current_scale(context.stream, slot.amax, slot.format, slot.scale, slot.scale_inv);
  }
  const bool record = context.training && slot.format.policy == ScalePolicy::delayed;
  ops::quantize(context.stream, x, out, record ? slot.amax : nullptr,
                context.collect_statistics ? slot.statistics : nullptr);
  return out;
}

void Linear::forward(const StepContext& context, ConstView x, View y, Saved& saved) const {
  saved = {};
  ArenaScope scope(*context.scratch);
  ops::Gemm fprop = {.a = {x}, .b = {plain_weight(), true}, .c = y};
  const bool quantized_wgrad = context.training && x_wgrad_slot_ != nullptr;
  if (scaled(context, plan_.fprop.a)) {
    const bool shared = quantized_wgrad && x_wgrad_slot_ == x_slot_;
    const bool turn = shared && along_k_only(context);
    const QuantizedView codes =
        quantize(context, x, *x_slot_, shared && !turn ? *context.saved : *context.scratch,
                 turn ? context.saved : nullptr);
    fprop.a = left(codes, false);
    fprop.b = right(weight_codes(), true);
    if (shared) {
      saved.codes = codes;
      saved.codes.codes = turn ? View{} : codes.codes;  // only what lies in `saved` stays
    }
  }
  fprop.bias = bias_ == nullptr ? ConstView{} : ConstView(bias_->value);
  fprop.fast_accumulate = plan_.fprop.fast_accumulate;
  ops::gemm(context.stream, fprop);
  if (quantized_wgrad && saved.codes.empty()) {
    const bool turn = along_k_only(context);
    saved.codes = quantize(context, x, *x_wgrad_slot_, turn ? *context.scratch : *context.saved,
                           turn ? context.saved : nullptr);
    saved.codes.codes = turn ? View{} : saved.codes.codes;
  } else if (context.training && saved.codes.empty()) {
    saved.x = x;
  }
}

void Linear::backward(const StepContext& context, ConstView dy, View dx, const Saved& saved) const {
  ArenaScope scope(*context.scratch);
  QuantizedView dy_codes;
  Arena* const turned = along_k_only(context) ? context.scratch : nullptr;
  if (dy_slot_ != nullptr) {
    dy_codes = quantize(context, dy, *dy_slot_, *context.scratch,
                        dy_wgrad_slot_ == dy_slot_ ? turned : nullptr);
  }
  if (!dx.empty()) {
    ops::Gemm dgrad = {.a = {dy}, .b = {plain_weight(), false}, .c = dx};
    if (dy_slot_ != nullptr) {
      dgrad.a = left(dy_codes, false);
      dgrad.b = right(weight_codes(), false);
    }
    dgrad.fast_accumulate = plan_.dgrad.fast_accumulate;
    ops::gemm(context.stream, dgrad);
  }
  // dW[N, K] += dy^T x, straight into the gradient buffer.
  ops::Gemm wgrad = {.a = {dy, true}, .b = {saved.x}, .c = weight_->gradient, .beta = 1.0F};
  if (dy_wgrad_slot_ != nullptr) {
    const QuantizedView codes = dy_wgrad_slot_ == dy_slot_ ? dy_codes
                                                           : quantize(context, dy, *dy_wgrad_slot_,
                                                                      *context.scratch, turned);
    wgrad.a = left(codes, true);
    wgrad.b = right(saved.codes, false);
  }
  wgrad.fast_accumulate = plan_.wgrad.fast_accumulate;
  ops::gemm(context.stream, wgrad);
  if (bias_ != nullptr) {
    const int64_t rows = dy.shape.rows();
    const View partial = fp8train::allocate(
        *context.scratch, DType::f32, {(rows + kBiasChunk - 1) / kBiasChunk, dy.shape.back()});
    ops::bias_backward(context.stream, dy, bias_->gradient, partial);
  }
}

}  // namespace fp8train
