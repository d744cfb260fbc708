#include "optim/optimizer.h"

#include <cstddef>

#include "base/error.h"
#include "ops/elementwise.h"
#include "ops/quantize.h"

namespace fp8train {
namespace {

constexpr int64_t kNormChunk = 4096;
constexpr float kInitialLossScale = 65536.0F;  // torch.amp.GradScaler

/// After an operation that does not cast.
void cast_weight(Stream stream, const Parameter& parameter, const ops::QuantizeSink& cast) {
  if (!cast.out.empty()) {
    ops::quantize(stream, parameter.value, cast.out, cast.amax, cast.statistics);
  } else if (!cast.empty()) {
    ops::amax(stream, parameter.value, cast.amax);
  }
}

}  // namespace

Optimizer::Optimizer(Device& device, ParameterStore& parameters, const OptimizerSettings& settings,
                     bool dynamic_loss_scaling, const MomentFormats& moments)
    : device_(&device),
      parameters_(&parameters),
      settings_(settings),
      control_(device, sizeof(ops::StepControl), MemoryCategory::optimizer_state) {
  scaling_.dynamic = dynamic_loss_scaling;
  const bool adam = settings_.name == "adamw";
  if (!adam && settings_.name != "sgd") {
    throw ConfigError("optimizer.name: '" + settings_.name + "' is not one of adamw, sgd");
  }
  const bool fp32 = moments.first == TensorFormat{} && moments.second == TensorFormat{};
  if (!adam && settings_.momentum != 0.0 && !fp32) {
    throw ConfigError(
        "optimizer.name: sgd keeps its momentum in fp32; remove precision.moment1 "
        "and precision.moment2, or choose a precision row with fp32 moments");
  }
  if (adam || settings_.momentum != 0.0) {
    moment1_ = make_state(moments.first);
  }
  if (adam) {
    moment2_ = make_state(moments.second);
  }
  ops::StepControl initial = {};
  initial.loss_scale = dynamic_loss_scaling ? kInitialLossScale : 1.0F;
  set_control(initial);
}

const float* Optimizer::loss_scale() const {
  return &device_control()->loss_scale;
}

Optimizer::State Optimizer::make_state(const TensorFormat& format) const {
  State state;
  state.format = format;
  state.codes =
      Tensor(*device_, format.dtype, {parameters_->elements()}, MemoryCategory::optimizer_state);
  fill_zero(*device_, state.codes);
  int64_t scales = 0;
  for (const auto& parameter : parameters_->all()) {
    state.first_scale.push_back(scales);
    scales += stored_scales(format, parameter->shape.count());
  }
  if (scales == 0) {
    return state;
  }
  state.scales = Tensor(*device_, DType::f32, {scales}, MemoryCategory::optimizer_state);
  ops::fill(device_->stream(), state.scales, 1.0F);
  if (format.granularity == Granularity::tensor) {  // beside each scale, an amax
    std::vector<float> pairs(static_cast<size_t>(scales), 1.0F);
    for (size_t i = 1; i < pairs.size(); i += 2) {
      pairs[i] = 0.0F;
    }
    copy_from_host(*device_, state.scales, pairs.data());
  }
  return state;
}

StoredTensor Optimizer::slice(const State& state, size_t parameter) const {
  if (state.codes.empty()) {
    return {};
  }
  const Parameter& owner = *parameters_->all()[parameter];
  const size_t begin = static_cast<size_t>(owner.offset) * size_of(state.format.dtype);
  const View codes = {state.codes.view().as<uint8_t>() + begin, state.format.dtype, owner.shape};
  const int64_t scales = stored_scales(state.format, owner.shape.count());
  if (scales == 0) {
    return codes;
  }
  const View own = {
      state.scales.view().as<float>() + state.first_scale[parameter], DType::f32, {scales}};
  return {codes, state.format, own};
}

void Optimizer::begin_step(Stream stream) {
  ops::fill(stream, parameters_->gradients(), 0.0F);
}

void Optimizer::set_learning_rate(double lr) {
  device_->copy_from_host(&device_control()->lr, &lr, sizeof(lr));
}

void Optimizer::step(Stream stream, Arena& scratch, bool collect_statistics) {
  ArenaScope scope(scratch);
  const int64_t chunks = (parameters_->elements() + kNormChunk - 1) / kNormChunk;
  const View partial = allocate(scratch, DType::i64, {chunks});  // doubles: 8 bytes each
  ops::StepControl* control = device_control();
  ops::sum_of_squares(stream, parameters_->gradients(), &control->squared_norm, partial);
  ops::prepare_step(stream, control, static_cast<float>(settings_.grad_clip), scaling_);
  device_->fill_zero(&control->squared_norm, sizeof(control->squared_norm));  // of the next step
  for (size_t i = 0; i < parameters_->all().size(); ++i) {
    const std::unique_ptr<Parameter>& parameter = parameters_->all()[i];
    const double decay = parameter->decay ? settings_.weight_decay : 0.0;
    ops::QuantizeSink cast = parameter->cast;
    cast.statistics = collect_statistics ? cast.statistics : nullptr;
    if (settings_.name == "adamw") {
      if (!cast.empty() && cast.out.empty()) {
        ops::fill(stream, {cast.amax, DType::f32, {1}}, 0.0F);
      }
      ops::adamw(stream,
                 {.weight = parameter->value,
                  .gradient = parameter->gradient,
                  .moment1 = slice(moment1_, i),
                  .moment2 = slice(moment2_, i),
                  .copy = parameter->copy,
                  .beta1 = settings_.betas[0],
                  .beta2 = settings_.betas[1],
                  .eps = settings_.eps,
                  .weight_decay = decay,
                  .cast = cast},
                 control);
    } else {
      ops::sgd(stream,
               {.weight = parameter->value,
                .gradient = parameter->gradient,
                .momentum = slice(moment1_, i).codes,
                .copy = parameter->copy,
                .momentum_factor = settings_.momentum,
                .weight_decay = decay},
               control);
      cast_weight(stream, *parameter, cast);
    }
  }
}

ops::StepControl Optimizer::control() const {
  ops::StepControl control = {};
  device_->copy_to_host(&control, control_.data(), sizeof(control));
  return control;
}

void Optimizer::set_control(const ops::StepControl& control) {
  device_->copy_from_host(control_.data(), &control, sizeof(control));
}

StepReport Optimizer::report() const {
  const ops::StepControl now = control();
  return {.gradient_norm = now.gradient_norm,
          .loss_scale = now.loss_scale,
          .skipped_steps = now.skipped_steps,
          .applied_steps = now.applied_steps,
          .skipped = now.skip != 0};
}

}  // namespace fp8train
