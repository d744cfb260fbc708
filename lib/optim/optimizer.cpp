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
                     bool dynamic_loss_scaling, uint64_t seed)
    : device_(&device),
      parameters_(&parameters),
      settings_(settings),
      seed_(seed),
      control_(device, sizeof(ops::StepControl), MemoryCategory::optimizer_state) {
  scaling_.dynamic = dynamic_loss_scaling;
  const bool adam = settings_.name == "adamw";
  if (!adam && settings_.name != "sgd") {
    throw ConfigError("optimizer.name: '" + settings_.name + "' is not one of adamw, sgd");
  }
  check_formats();
  for (const auto& parameter : parameters.all()) {
    if (adam || settings_.momentum != 0.0) {
      moment1_.add(parameter->formats.moment1, parameter->shape, MemoryCategory::optimizer_state);
    }
    if (adam) {
      moment2_.add(parameter->formats.moment2, parameter->shape, MemoryCategory::optimizer_state);
    }
  }
  moment1_.allocate(device);
  moment2_.allocate(device);
  ops::StepControl initial = {};
  initial.loss_scale = dynamic_loss_scaling ? kInitialLossScale : 1.0F;
  set_control(initial);
}

void Optimizer::check_formats() const {
  const TensorFormat fp32;
  for (const auto& parameter : parameters_->all()) {
    const ParameterFormats& formats = parameter->formats;
    const bool plain = formats.value == fp32 && formats.gradient == fp32 &&
                       (settings_.momentum == 0.0 || formats.moment1 == fp32);
    if (settings_.name == "sgd" && !plain) {
      throw ConfigError(
          "optimizer.name: sgd updates fp32 weights with fp32 gradients and an fp32 momentum; "
          "choose adamw, or a precision row with fp32 weights, gradients and moments");
    }
  }
}

const float* Optimizer::loss_scale() const {
  return &device_control()->loss_scale;
}

void Optimizer::begin_step(Stream stream) {
  for (const View& words : parameters_->gradients().words()) {
    ops::fill(stream, words, 0.0F);
  }
}

void Optimizer::set_learning_rate(double lr) {
  device_->copy_from_host(&device_control()->lr, &lr, sizeof(lr));
}

void Optimizer::round_gradients(Stream stream, Arena& scratch) const {
  for (const auto& parameter : parameters_->all()) {
    const TensorFormat& wire = parameter->formats.gradient_wire;
    const StoredTensor& gradient = parameter->stored_gradient;
    const bool rounded_already = wire == gradient.format || parameter->automatic != nullptr;
    if (rounded_already || wire == TensorFormat{}) {
      continue;
    }
    ArenaScope scope(scratch);
    const Shape& shape = parameter->shape;
    const bool coded = gradient.format.is_scaled();
    const View values = coded ? allocate(scratch, DType::f32, shape) : gradient.codes;
    StoredTensor image(allocate(scratch, wire.dtype, shape), wire, {});
    const int64_t scales = stored_scales(wire, shape.count());
    if (scales > 0) {
      image.scales = allocate(scratch, DType::f32, {scales});
      ops::fill(stream, image.scales, 0.0F);
    }
    if (coded) {
      ops::read_stored(stream, gradient, values);
    }
    ops::store(stream, {.x = values, .to = image});
    ops::read_stored(stream, image, values);
    if (coded) {
      ops::store(stream, {.x = values, .to = gradient});
    }
  }
}

void Optimizer::sum_gradients(Stream stream, Arena& scratch) const {
  double* sum = squared_norm();
  const auto add = [&](const View& values) {
    const int64_t chunks = (values.count() + kNormChunk - 1) / kNormChunk;
    const View partial = allocate(scratch, DType::i64, {chunks});  // doubles: 8 bytes each
    ops::sum_of_squares(stream, values, sum, partial);
  };
  for (const View& fp32 : parameters_->gradients().fp32()) {
    ArenaScope scope(scratch);
    add(fp32);
  }
  for (const auto& parameter : parameters_->all()) {
    const StoredTensor& gradient = parameter->stored_gradient;
    if (!parameter->gradient.empty()) {
      continue;
    }
    ArenaScope scope(scratch);
    if (!gradient.format.is_scaled()) {
      add(gradient.codes);
      continue;
    }
    const View values = allocate(scratch, DType::f32, parameter->shape);
    ops::read_stored(stream, gradient, values);
    add(values);
  }
}

void Optimizer::step(Stream stream, Arena& scratch, bool collect_statistics) {
  sum_gradients(stream, scratch);
  ops::StepControl* control = device_control();
  ops::prepare_step(stream, control, static_cast<float>(settings_.grad_clip), scaling_);
  device_->fill_zero(&control->squared_norm, sizeof(control->squared_norm));  // of the next step
  for (size_t i = 0; i < parameters_->all().size(); ++i) {
    update(stream, i, collect_statistics);
  }
}

void Optimizer::update(Stream stream, size_t index, bool collect_statistics) const {
  const Parameter& parameter = *parameters_->all()[index];
  const double decay = parameter.decay ? settings_.weight_decay : 0.0;
  ops::QuantizeSink cast = parameter.cast;
  cast.statistics = collect_statistics ? cast.statistics : nullptr;
  if (settings_.name == "sgd") {
    ops::sgd(stream,
             {.weight = parameter.value,
              .gradient = parameter.gradient,
              .momentum = of(moment1_, index).codes,
              .copy = parameter.copy,
              .momentum_factor = settings_.momentum,
              .weight_decay = decay},
             device_control());
    cast_weight(stream, parameter, cast);
    return;
  }
  if (!cast.empty() && cast.out.empty()) {
    ops::fill(stream, {cast.amax, DType::f32, {1}}, 0.0F);
  }
  ops::adamw(stream,
             {.weight = parameter.stored_value,
              .gradient = parameter.stored_gradient,
              .moment1 = moment1(index),
              .moment2 = moment2(index),
              .copy = parameter.copy,
              .beta1 = settings_.betas[0],
              .beta2 = settings_.betas[1],
              .eps = settings_.eps,
              .weight_decay = decay,
              .cast = cast,
              .rounding = {.seed = seed_, .tensor = index}},
             device_control());
  if (parameter.automatic != nullptr && !holds_automatic_) {
    ops::update_auto_scale(stream, parameter.stored_gradient.codes, parameter.automatic,
                           &device_control()->skip);
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
