#include "optim/optimizer.h"

#include <algorithm>
#include <cstddef>

#include "base/error.h"
#include "base/math.h"
#include "ops/cast/quantize.h"
#include "ops/exchange/wire.h"
#include "ops/pointwise/elementwise.h"

namespace fp8train {
namespace {

constexpr float kInitialLossScale = 65536.0F;  // torch.amp.GradScaler

/// Rounds fp32 values as they would cross the wire. `ranks`: have the other parts of the tensor;
/// may be null.
void round_to_wire(Stream stream, Arena& scratch, const TensorFormat& wire, const View& values,
                   RankCombiner* ranks) {
  if (is_stored_format(wire)) {
    Encoded packet(allocate(scratch, wire.dtype, values.shape), wire, {});
    const int64_t scales = stored_scales(wire, values.count());
    if (scales > 0) {
      packet.scales = allocate(scratch, DType::f32, {scales});
      ops::fill(stream, packet.scales, 0.0F);
    }
    ops::Store call = {.x = values, .to = packet};
    if (ranks != nullptr && codec_of(wire) == Codec::tensor) {
      call.step = CastStep::amax;
      ops::store(stream, call);
      ranks->largest({packet.scales.as<float>() + 1, DType::f32, {1}});
      call.step = CastStep::codes;
    }
    ops::store(stream, call);
    ops::read_stored(stream, packet, values);
    return;
  }
  const int64_t chunk = round_up(values.count(), range_alignment(wire));
  const View packet = allocate(scratch, DType::u8, {ops::wire_bytes(wire, chunk)});
  ops::pack_wire(stream, {.x = values, .format = wire, .chunk = chunk, .packets = packet.data});
  ops::sum_wire(stream, {.packets = packet.data, .format = wire, .chunk = chunk, .y = values});
}

/// Makes the copy in 16 bits that GEMMs read, after an operation that does not make it.
void copy_value(Stream stream, const Parameter& parameter) {
  if (!parameter.copy.empty()) {
    ops::cast(stream, parameter.value, parameter.copy);
  }
}

/// Casts the weight, or takes its amax, as `cast` says; for updates that do not cast themselves.
void cast_weight(Stream stream, const Parameter& parameter, const ops::QuantizeSink& cast) {
  if (!cast.out.empty()) {
    ops::quantize(stream, parameter.value, cast.out, cast.amax, cast.statistics);
  } else if (!cast.empty()) {
    ops::amax(stream, parameter.value, cast.amax);
  }
}

}  // namespace

void RankCombiner::gather(const View& /*part*/, const View& /*of_ranks*/) {
  throw InternalError("these ranks have no parts of a matrix");
}

void OptimizerState::add(size_t index, const TensorFormat& format, const Parameter& parameter) {
  if (!parameter.trained) {
    return;
  }
  position_.resize(std::max(position_.size(), index + 1));
  position_[index] =
      pool_.add(format, parameter.updated.value.codes.shape,
                parameter.offloads ? MemoryCategory::offloaded : MemoryCategory::optimizer_state,
                parameter.of_experts() ? 1 : 0);
}

Encoded OptimizerState::of(size_t index) const {
  const bool has = index < position_.size() && position_[index].has_value();
  return has ? pool_.at(*position_[index]) : Encoded{};
}

Optimizer::Optimizer(const OptimizerSite& site)
    : site_(site),
      control_(*site.device, sizeof(ops::StepControl), MemoryCategory::optimizer_state) {
  scaling_.dynamic = site.dynamic_loss_scaling;
  ops::StepControl initial = {};
  initial.loss_scale = initial_loss_scale();
  set_control(initial);
}

Encoded Optimizer::state(std::string_view name, size_t parameter) const {
  for (const OptimizerState* state : states()) {
    if (state->name() == name) {
      return state->of(parameter);
    }
  }
  return {};
}

float Optimizer::initial_loss_scale() const {
  return site_.dynamic_loss_scaling ? kInitialLossScale : 1.0F;
}

const float* Optimizer::loss_scale() const {
  return &device_control()->loss_scale;
}

void Optimizer::clear_gradients(Stream stream) {
  for (const View& words : parameters().cleared_gradients()) {
    ops::fill(stream, words, 0.0F);
  }
}

void Optimizer::set_learning_rate(double lr) {
  device().copy_from_host(&device_control()->lr, &lr, sizeof(lr));
}

DType Optimizer::read_as(const TensorFormat& gradient, const TensorFormat& wire) const {
  const bool reads = rounds_gradients_ && rounds_as_it_reads() && gradient == TensorFormat{} &&
                     wire == TensorFormat{.dtype = DType::bf16};
  return reads ? wire.dtype : DType::f32;
}

void Optimizer::round_gradients(Stream stream, Arena& scratch, RankCombiner* combiner) const {
  for (const auto& parameter : parameters().all()) {
    const TensorFormat& wire = parameter->formats.gradient_wire;
    const Encoded& gradient = parameter->stored_gradient;
    const bool rounded_already = wire == gradient.format || parameter->automatic != nullptr;
    if (!parameter->trained || rounded_already || wire == TensorFormat{} ||
        read_as(gradient.format, wire) != DType::f32) {
      continue;
    }
    ArenaScope scope(scratch);
    const bool encoded = gradient.format.is_scaled();
    const View values = encoded ? allocate(scratch, DType::f32, parameter->shape) : gradient.codes;
    if (encoded) {
      ops::read_stored(stream, gradient, values);
    }
    round_to_wire(stream, scratch, wire, values,
                  parameter->sharding.cut == Axis::tensor ? combiner : nullptr);
    if (encoded) {
      ops::store(stream, {.x = values, .to = gradient});
    }
  }
}

void Optimizer::add_squares(Stream stream, Arena& scratch, const View& x, double* sum,
                            DType read_as) {
  const ArenaScope scope(scratch);
  const View partial = allocate(scratch, DType::f64, {ops::squares_partial_sums(x.count())});
  ops::sum_of_squares(stream, x, sum, partial, read_as);
}

/// Adds the squares of the part of a gradient that this rank updates.
void Optimizer::add_gradient(Stream stream, Arena& scratch, const Parameter& parameter) const {
  const Encoded& gradient = parameter.updated.gradient;
  if (gradient.empty() || gradient.count() == 0) {
    return;
  }
  if (!gradient.format.is_scaled()) {
    return add_squares(stream, scratch, gradient.codes, squared_norm(),
                       read_as(gradient.format, parameter.formats.gradient_wire));
  }
  const ArenaScope scope(scratch);
  const View values = allocate(scratch, DType::f32, gradient.codes.shape);
  ops::read_stored(stream, gradient, values);
  add_squares(stream, scratch, values, squared_norm());
}

void Optimizer::sum_gradients(Stream stream, Arena& scratch) const {
  double* sum = squared_norm();
  const bool counts_all = std::ranges::all_of(
      parameters().all(), [](const auto& parameter) { return parameter->counts_in_norm; });
  const StoreShards* const shards = parameters().shards();
  const StoredPool& pool = parameters().gradients();
  if (shards != nullptr && counts_all) {
    for (const View& shard : shards->updated_gradients()) {
      add_squares(stream, scratch, shard, sum);
    }
    return;
  }
  for (size_t i = 0; counts_all && i < pool.buffers(); ++i) {
    const Encoded gradients = pool.whole(i);
    if (gradients.format == TensorFormat{}) {
      const auto wire = static_cast<size_t>(pool.wire_index(i));
      add_squares(stream, scratch, gradients.codes, sum,
                  read_as(gradients.format, parameters().wires()[wire]));
    }
  }
  for (const auto& parameter : parameters().all()) {
    const bool is_in_pool = counts_all && !parameter->gradient.empty();
    if (parameter->trained && parameter->counts_in_norm && !is_in_pool) {
      add_gradient(stream, scratch, *parameter);
    }
  }
}

void Optimizer::step(Stream stream, Arena& scratch, bool collect_statistics,
                     RankCombiner* combiner) {
  if (rounds_gradients_) {
    round_gradients(stream, scratch, combiner);
  }
  sum_gradients(stream, scratch);
  ops::StepControl* control = device_control();
  if (combiner != nullptr) {
    combiner->sum(&control->squared_norm);
  }
  ops::prepare_step(stream, control, static_cast<float>(settings().grad_clip), scaling_);
  device().fill_zero(&control->squared_norm, sizeof(control->squared_norm));  // of the next step
  if (combiner != nullptr && combiner->of_parts()) {
    combine_scales(stream, *combiner);
  }
  const Update step = {stream, &scratch, collect_statistics, combiner};
  begin_update(step);
  for (size_t i = 0; i < parameters().all().size(); ++i) {
    if (parameter(i).trained && !parameter(i).updated.elsewhere()) {
      finish_update(step, parameter(i), update(step, i));
    }
  }
}

void Optimizer::receive(Stream stream, Arena& scratch, bool collect_statistics) {
  const Update step = {stream, &scratch, collect_statistics};
  for (const auto& parameter : parameters().all()) {
    if (parameter->trained && parameter->updated.elsewhere()) {
      copy_value(stream, *parameter);
      cast_weight(stream, *parameter, cast_of(*parameter, step));
    }
  }
}

void Optimizer::combine_scales(Stream stream, RankCombiner& combiner) {
  std::vector<View> scales[2];  // of experts: [1]
  for (const bool of_experts : {false, true}) {
    std::vector<View>& found = scales[of_experts ? 1 : 0];
    found = parameters().tensor_scales(of_experts);
    for (const OptimizerState* state : states()) {
      std::ranges::copy(state->tensor_scales(of_experts), std::back_inserter(found));
    }
  }
  amax_is_known_ = !scales[0].empty() || !scales[1].empty();
  if (!amax_is_known_) {
    return;
  }
  find_amax(stream);
  for (const View& pairs : scales[0]) {
    combiner.largest(pairs);  // a scale is the same on all ranks and stays
  }
  for (const View& pairs : scales[1]) {
    combiner.largest_of_experts(pairs);
  }
}

void Optimizer::find_amax(Stream /*stream*/) {
  throw InternalError("optimizer " + settings().name +
                      " has tensors with one scale, which ranks share, and no find_amax()");
}

void Optimizer::finish_update(const Update& step, const Parameter& parameter, Done done) const {
  if (!done.copied && parameter.updated.whole) {
    copy_value(step.stream, parameter);
  }
  if (!done.cast) {
    cast_weight(step.stream, parameter, cast_of(parameter, step));
  }
  if (parameter.automatic != nullptr && !parameter.scales_sum) {
    ops::count_at_maximum(step.stream, parameter.stored_gradient.codes, parameter.automatic);
    // With several ranks the scale moves by the counts of all parts.
    if (!parameter.sharding.cut) {
      update_sum_scales(step.stream, {parameter.automatic, 1}, {parameter.automatic, 1});
    }
  }
}

ops::QuantizeSink Optimizer::cast_of(const Parameter& parameter, const Update& step) {
  ops::QuantizeSink cast = parameter.cast;
  cast.statistics = step.collect_statistics ? cast.statistics : nullptr;
  return cast;
}

void Optimizer::update_sum_scales(Stream stream, std::span<const ops::AutoScale> of_ranks,
                                  std::span<ops::AutoScale> scales) const {
  const auto ranks = static_cast<int64_t>(of_ranks.size() / scales.size());
  ops::update_auto_scales(stream, of_ranks.data(), ranks, scales.data(),
                          static_cast<int64_t>(scales.size()), &device_control()->skip);
}

ops::StepControl Optimizer::control() const {
  ops::StepControl control = {};
  device().copy_to_host(&control, control_.data(), sizeof(control));
  return control;
}

void Optimizer::set_control(const ops::StepControl& control) {
  device().copy_from_host(control_.data(), &control, sizeof(control));
}

}  // namespace fp8train
