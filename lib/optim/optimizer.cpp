#include "optim/optimizer.h"

#include <cstddef>

#include "base/error.h"
#include "ops/cast/quantize.h"
#include "ops/pointwise/elementwise.h"

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
    const Shape& shape = parameter->updated.value.codes.shape;
    if (adam || settings_.momentum != 0.0) {
      moment1_.add(parameter->formats.moment1, shape, MemoryCategory::optimizer_state);
    }
    if (adam) {
      moment2_.add(parameter->formats.moment2, shape, MemoryCategory::optimizer_state);
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
  for (const View& words : parameters_->cleared_gradients()) {
    ops::fill(stream, words, 0.0F);
  }
}

void Optimizer::set_learning_rate(double lr) {
  device_->copy_from_host(&device_control()->lr, &lr, sizeof(lr));
}

/// The type that gradients of a format are rounded to where they are read; fp32: none.
DType Optimizer::read_as(const TensorFormat& gradient, const TensorFormat& wire) const {
  const bool reads = rounds_gradients_ && settings_.name == "adamw" && gradient == TensorFormat{} &&
                     wire == TensorFormat{.dtype = DType::bf16};
  return reads ? wire.dtype : DType::f32;
}

void Optimizer::round_gradients(Stream stream, Arena& scratch) const {
  for (const auto& parameter : parameters_->all()) {
    const TensorFormat& wire = parameter->formats.gradient_wire;
    const StoredTensor& gradient = parameter->stored_gradient;
    const bool rounded_already = wire == gradient.format || parameter->automatic != nullptr;
    if (rounded_already || wire == TensorFormat{} || read_as(gradient.format, wire) != DType::f32) {
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
  const auto add = [&](const View& values, DType type = DType::f32) {
    const int64_t chunks = (values.count() + kNormChunk - 1) / kNormChunk;
    const View partial = allocate(scratch, DType::f64, {chunks});
    ops::sum_of_squares(stream, values, sum, partial, type);
  };
  if (parameters_->layout() != nullptr) {
    for (const View& shard : parameters_->updated_gradients()) {
      ArenaScope scope(scratch);
      add(shard);
    }
    return;
  }
  const StoredPool& pool = parameters_->gradients();
  for (size_t i = 0; i < pool.buffers(); ++i) {
    const StoredTensor gradients = pool.whole(i);
    if (gradients.format == TensorFormat{}) {
      const auto lane = static_cast<size_t>(pool.lane_of(i));
      ArenaScope scope(scratch);
      add(gradients.codes, read_as(gradients.format, parameters_->wires()[lane]));
    }
  }
  for (const auto& parameter : parameters_->all()) {
    const StoredTensor& gradient = parameter->updated.gradient;
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

void Optimizer::step(Stream stream, Arena& scratch, bool collect_statistics,
                     RankCombiner* combiner) {
  if (rounds_gradients_) {
    round_gradients(stream, scratch);
  }
  sum_gradients(stream, scratch);
  ops::StepControl* control = device_control();
  if (combiner != nullptr) {
    combiner->sum(&control->squared_norm);
  }
  ops::prepare_step(stream, control, static_cast<float>(settings_.grad_clip), scaling_);
  device_->fill_zero(&control->squared_norm, sizeof(control->squared_norm));  // of the next step
  if (combiner != nullptr) {
    find_amax(stream, *combiner);
  }
  for (size_t i = 0; i < parameters_->all().size(); ++i) {
    update(stream, i, collect_statistics);
  }
}

/// Scales that a tensor has for the whole of it follow from the parts of all ranks.
void Optimizer::find_amax(Stream stream, RankCombiner& combiner) const {
  std::vector<View> scales = parameters_->shared_scales();
  for (const StoredPool* pool : {&moment1_, &moment2_}) {
    const std::vector<View> of_pool = pool->tensor_scales();
    scales.insert(scales.end(), of_pool.begin(), of_pool.end());
  }
  if (scales.empty()) {
    return;
  }
  for (size_t i = 0; i < parameters_->all().size(); ++i) {
    if (parameters_->all()[i]->updated.count() > 0) {
      ops::adamw_amax(stream, adamw_call(i, false), device_control());
    }
  }
  for (const View& pairs : scales) {
    combiner.largest(pairs);  // a scale is the same on all ranks and stays
  }
}

ops::AdamW Optimizer::adamw_call(size_t index, bool collect_statistics) const {
  const Parameter& parameter = *parameters_->all()[index];
  ops::QuantizeSink cast = parameter.cast;
  cast.statistics = collect_statistics ? cast.statistics : nullptr;
  return {.weight = parameter.updated.value,
          .gradient = parameter.updated.gradient,
          .moment1 = moment1(index),
          .moment2 = moment2(index),
          .copy = parameter.updated.whole ? parameter.copy : View{},
          .beta1 = settings_.betas[0],
          .beta2 = settings_.betas[1],
          .eps = settings_.eps,
          .weight_decay = parameter.decay ? settings_.weight_decay : 0.0,
          .cast = cast,
          .rounding = {.seed = seed_, .tensor = index, .first = parameter.updated.first},
          .amax_known = !parameter.updated.whole,
          .gradient_read_as =
              read_as(parameter.updated.gradient.format, parameter.formats.gradient_wire)};
}

void Optimizer::update(Stream stream, size_t index, bool collect_statistics) const {
  const Parameter& parameter = *parameters_->all()[index];
  const ops::AdamW call = adamw_call(index, collect_statistics);
  if (settings_.name == "sgd") {
    if (parameter.updated.count() > 0) {
      ops::sgd(stream,
               {.weight = call.weight.codes,
                .gradient = call.gradient.codes,
                .momentum = of(moment1_, index).codes,
                .copy = call.copy,
                .momentum_factor = settings_.momentum,
                .weight_decay = call.weight_decay},
               device_control());
    }
    cast_weight(stream, parameter, call.cast);
    return;
  }
  if (!call.cast.empty() && call.cast.out.empty()) {
    ops::fill(stream, {call.cast.amax, DType::f32, {1}}, 0.0F);
  }
  ops::adamw(stream, call, device_control());
  if (parameter.automatic != nullptr && !parameter.scales_sum) {
    ops::update_auto_scale(stream, parameter.stored_gradient.codes, parameter.automatic,
                           &device_control()->skip);
  }
}

void Optimizer::update_sum_scales(Stream stream, ConstView of_ranks) const {
  const View scales = parameters_->automatic_scales();
  ops::update_auto_scales(stream, of_ranks.as<ops::AutoScale>(), of_ranks.count() / scales.count(),
                          scales.as<ops::AutoScale>(), scales.shape[0], &device_control()->skip);
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
          .skipped = now.skip != 0,
          .skipped_in_a_row = now.skipped_in_a_row};
}

}  // namespace fp8train
