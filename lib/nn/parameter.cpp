#include "nn/parameter.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>

#include "base/error.h"
#include "base/philox.h"

namespace fp8train {
namespace {

constexpr uint64_t kInitPurpose = 0x1A17;  // of philox_key

/// Standard normal values by Box-Muller in double, rounded to float.
void draw_normal(uint64_t key, float deviation, float* values, int64_t count) {
  constexpr double kTwoTo32 = 4294967296.0;
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < count; i += 4) {
    const PhiloxBlock block = philox(key, 0, static_cast<uint64_t>(i / 4));
    double normal[4];
    for (int pair = 0; pair < 2; ++pair) {
      const double u = (block.word[2 * pair] + 0.5) / kTwoTo32;
      const double v = block.word[2 * pair + 1] / kTwoTo32;
      const double radius = std::sqrt(-2.0 * std::log(u));
      normal[2 * pair] = radius * std::cos(2.0 * std::numbers::pi * v);
      normal[2 * pair + 1] = radius * std::sin(2.0 * std::numbers::pi * v);
    }
    for (int64_t j = i; j < std::min(i + 4, count); ++j) {
      values[j] = static_cast<float>(normal[j - i] * deviation);
    }
  }
}

/// fp32, on the device; what it holds is waited for before it goes.
Tensor staging(Device& device, const Parameter& parameter) {
  return {device, DType::f32, parameter.shape, MemoryCategory::workspace};
}

}  // namespace

Parameter* ParameterStore::add(Parameter parameter) {
  check(values_.empty(), "parameters are added before the store is allocated");
  parameter.used_rows = parameter.used_rows == 0 ? parameter.shape[0] : parameter.used_rows;
  parameters_.push_back(std::make_unique<Parameter>(std::move(parameter)));
  return parameters_.back().get();
}

std::vector<size_t> ParameterStore::unit_begins() const {
  std::vector<size_t> begins = unit_begins_;
  begins.push_back(parameters_.size());
  return begins;
}

size_t ParameterStore::unit_of(size_t parameter) const {
  const auto after = std::upper_bound(unit_begins_.begin(), unit_begins_.end(), parameter);
  check(after != unit_begins_.begin(), "a parameter belongs to a unit");
  return static_cast<size_t>(after - unit_begins_.begin()) - 1;
}

MemoryCategory ParameterStore::value_category(size_t parameter) const {
  return parameters_[parameter]->formats.is_master ? MemoryCategory::master_weights
                                                   : MemoryCategory::weights;
}

void ParameterStore::allocate(Device& device, bool with_gradients) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = *parameters_[i];
    values_.add(parameter.formats.value, parameter.shape, value_category(i));
    if (with_gradients) {
      gradients_.add(parameter.formats.gradient, parameter.shape, MemoryCategory::gradients,
                     lane_of(parameter.formats.gradient_wire));
    }
  }
  values_.allocate(device);
  gradients_.allocate(device);
  find_views(with_gradients);
  for (const auto& parameter : parameters_) {
    parameter->updated = {.value = parameter->stored_value, .gradient = parameter->stored_gradient};
  }
  if (with_gradients) {
    allocate_automatic(device);
  }
}

void ParameterStore::allocate(Device& device, const StoreLayout& layout) {
  check(layout.parts.size() == parameters_.size(), "a layout is of the parameters of the store");
  layout_ = layout;
  allocate_wholes(device);
  allocate_shards(device);
  find_views(true);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = *parameters_[i];
    const StoreLayout::Part& part = layout.parts[i];
    const StoreLayout::Segment& segment = layout.segments[part.segment];
    const auto member = std::find(segment.parameters.begin(), segment.parameters.end(), i);
    const int64_t begin = segment.begins[static_cast<size_t>(member - segment.parameters.begin())];
    const int64_t before = part.count == 0 ? 0 : begin + part.first - layout.rank * segment.shard;
    parameter.updated = {.value = shard_is_in_place(part.segment)
                                      ? part_of(parameter.stored_value, part.first, part.count)
                                      : value_shards_.at(value_shard_[i]),
                         .gradient = part_of(gradient_shard(part.segment), before, part.count),
                         .first = part.first,
                         .whole = false};
  }
  allocate_automatic(device);
}

void ParameterStore::allocate_wholes(Device& device) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = *parameters_[i];
    const int lane = static_cast<int>(layout_->parts[i].segment);
    values_.add(parameter.formats.value, parameter.shape, value_category(i), lane);
    gradients_.add(parameter.formats.gradient, parameter.shape, MemoryCategory::gradients, lane);
  }
  const auto segment_of = [this](int lane) -> const StoreLayout::Segment& {
    return layout_->segments[static_cast<size_t>(lane)];
  };
  const auto elements = [&](int lane, int64_t /*used*/) {
    return segment_of(lane).shard * layout_->ranks;
  };
  const auto in_turn = [&](const StoreLayout::Segment& segment, MemoryCategory category,
                           DType dtype, int64_t count) {
    return turns_.take(device, layout_->turns[segment.unit], segment.unit, category, dtype,
                       {count});
  };
  values_.allocate(device, {elements, [&](int lane, DType dtype, int64_t count) {
                              const StoreLayout::Segment& segment = segment_of(lane);
                              return segment.values_stay
                                         ? View{}
                                         : in_turn(segment,
                                                   value_category(segment.parameters.front()),
                                                   dtype, count);
                            }});
  gradients_.allocate(device, {elements, [&](int lane, DType dtype, int64_t count) {
                                 const StoreLayout::Segment& segment = segment_of(lane);
                                 return segment.gradients_stay
                                            ? View{}
                                            : in_turn(segment, MemoryCategory::gradients, dtype,
                                                      count);
                               }});
}

void ParameterStore::allocate_shards(Device& device) {
  value_shard_.resize(parameters_.size());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const StoreLayout::Part& part = layout_->parts[i];
    if (!shard_is_in_place(part.segment)) {
      value_shard_[i] = value_shards_.add(parameters_[i]->formats.value, {part.count},
                                          value_category(i), static_cast<int>(part.segment));
    }
  }
  value_shards_.allocate(device, {[this](int lane, int64_t /*used*/) {
                                    return layout_->segments[static_cast<size_t>(lane)].shard;
                                  },
                                  {}});
  gradient_shard_.resize(layout_->segments.size());
  for (size_t i = 0; i < layout_->segments.size(); ++i) {
    const StoreLayout::Segment& segment = layout_->segments[i];
    const TensorFormat& kept = parameters_[segment.parameters.front()]->formats.gradient;
    if (!segment.gradients_stay || kept.is_scaled()) {
      const TensorFormat sum = kept == plain(DType::bf16) ? kept : TensorFormat{};
      gradient_shard_[i] = gradient_shards_.add(sum, {segment.shard}, MemoryCategory::gradients);
    }
  }
  gradient_shards_.allocate(device);
}

void ParameterStore::find_views(bool with_gradients) {
  const auto fp32 = [](const StoredTensor& tensor) {
    return tensor.format == TensorFormat{} ? tensor.codes : View{};
  };
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = *parameters_[i];
    parameter.stored_value = values_.at(i);
    if (layout_ && !shard_is_in_place(layout_->parts[i].segment) &&
        parameter.formats.value.granularity == Granularity::tensor) {
      parameter.stored_value.scales = value_shards_.at(value_shard_[i]).scales;
    }
    parameter.stored_gradient = with_gradients ? gradients_.at(i) : StoredTensor{};
    parameter.value = fp32(parameter.stored_value);
    parameter.gradient = fp32(parameter.stored_gradient);
  }
}

bool ParameterStore::shard_is_in_place(size_t segment) const {
  return layout_->segments[segment].values_stay;
}

StoredTensor ParameterStore::whole(const StoredPool& pool, size_t segment) const {
  return pool.whole(pool.buffer_of(layout_->segments[segment].parameters.front()));
}

StoredTensor ParameterStore::value_shard(size_t segment) const {
  const StoreLayout::Segment& of = layout_->segments[segment];
  if (shard_is_in_place(segment)) {
    return part_of(whole_values(segment), layout_->rank * of.shard, of.shard);
  }
  return value_shards_.whole(value_shards_.buffer_of(value_shard_[of.parameters.front()]));
}

View ParameterStore::gradient_shard(size_t segment) const {
  const StoreLayout::Segment& of = layout_->segments[segment];
  const StoredTensor all = whole_gradients(segment);
  if (!of.gradients_stay || all.format.is_scaled()) {
    return gradient_shards_.at(gradient_shard_[segment]).codes;
  }
  return part_of(all, layout_->rank * of.shard, of.shard).codes;
}

std::vector<View> ParameterStore::updated_gradients() const {
  std::vector<View> shards;
  for (size_t i = 0; i < layout_->segments.size(); ++i) {
    shards.push_back(gradient_shard(i));
  }
  return shards;
}

std::vector<View> ParameterStore::shared_scales() const {
  std::vector<View> scales;
  for (size_t i = 0; i < layout_->segments.size(); ++i) {
    const StoredTensor shard = value_shard(i);
    if (shard.format.is_scaled() && shard.format.granularity == Granularity::tensor) {
      scales.push_back(shard.scales);
    }
  }
  return scales;
}

View ParameterStore::operand_memory(Device& device, const Parameter& parameter,
                                    MemoryCategory category, DType dtype, const Shape& shape) {
  if (!layout_ || !layout_->operands_take_turns) {
    return operands_.emplace_back(device, dtype, shape, category);
  }
  const auto found = std::find_if(parameters_.begin(), parameters_.end(),
                                  [&](const auto& other) { return other.get() == &parameter; });
  const size_t unit = unit_of(static_cast<size_t>(found - parameters_.begin()));
  return turns_.take(device, layout_->turns[unit], unit, category, dtype, shape);
}

int ParameterStore::lane_of(const TensorFormat& wire) {
  const auto found = std::find(wires_.begin(), wires_.end(), wire);
  if (found != wires_.end()) {
    return static_cast<int>(found - wires_.begin());
  }
  wires_.push_back(wire);
  return static_cast<int>(wires_.size()) - 1;
}

void ParameterStore::allocate_automatic(Device& device) {
  const auto scales_itself = [](const auto& parameter) {
    return parameter->formats.gradient_wire.policy == ScalePolicy::automatic;
  };
  const int64_t count = std::count_if(parameters_.begin(), parameters_.end(), scales_itself);
  if (count == 0) {
    return;
  }
  const std::vector<ops::AutoScale> initial(static_cast<size_t>(count));
  automatic_ = Tensor(device, DType::i64, {count}, MemoryCategory::scaling_state);
  static_assert(sizeof(ops::AutoScale) == sizeof(int64_t));
  copy_from_host(device, automatic_, initial.data());
  auto* next = automatic_.view().as<ops::AutoScale>();
  for (const auto& parameter : parameters_) {
    if (scales_itself(parameter)) {
      parameter->automatic = next++;
    }
  }
}

namespace {

std::vector<std::byte> bytes_of(Device& device, const View& view) {
  std::vector<std::byte> bytes(view.bytes());
  copy_to_host(device, bytes.data(), view);
  return bytes;
}

/// The bytes of `all`, of which `part` is elements `first` .. in the same format, into `part`.
void set_part(Device& device, const StoredTensor& part, int64_t first, const StoredTensor& all) {
  const size_t element = size_of(all.format.dtype);
  if (part.count() > 0) {
    copy_from_host(device, part.codes,
                   bytes_of(device, all.codes).data() + static_cast<size_t>(first) * element);
  }
  if (!part.scales.empty()) {
    const bool grouped = all.format.granularity == Granularity::group;
    const int64_t before = grouped ? stored_scales(all.format, first) : 0;
    copy_from_host(
        device, part.scales,
        bytes_of(device, all.scales).data() + static_cast<size_t>(before) * sizeof(float));
  }
}

}  // namespace

void set_value(Device& device, const Parameter& parameter, const float* values) {
  const StoredTensor& updated = parameter.updated.value;
  if (updated.format == TensorFormat{}) {
    if (updated.count() > 0) {
      copy_from_host(device, updated.codes, values + parameter.updated.first);
    }
    return;
  }
  const Tensor fp32 = staging(device, parameter);
  copy_from_host(device, fp32, values);
  StoredTensor to = updated;
  Tensor codes;
  Tensor scales;
  if (!parameter.updated.whole) {
    // A scale follows from the whole tensor.
    codes = Tensor(device, to.format.dtype, parameter.shape, MemoryCategory::workspace);
    to.codes = codes;
    const int64_t count = stored_scales(to.format, parameter.shape.count());
    if (count > 0) {
      scales = Tensor(device, DType::f32, {count}, MemoryCategory::workspace);
      fill_zero(device, scales);
      to.scales = scales;
    }
  }
  to.format.rounding = Rounding::nearest_even;
  ops::store(device.stream(), {.x = fp32, .to = to});
  if (!parameter.updated.whole) {
    set_part(device, updated, parameter.updated.first, to);
  }
  device.synchronize();
}

std::vector<float> value_on_host(Device& device, const Parameter& parameter) {
  if (!parameter.value.empty()) {
    return to_host_f32(device, parameter.value);
  }
  const Tensor fp32 = staging(device, parameter);
  ops::read_stored(device.stream(), parameter.stored_value, fp32);
  return to_host_f32(device, fp32);
}

void ParameterStore::initialize(Device& device, uint64_t seed) {
  if (device.kind() == DeviceKind::meta) {
    return;
  }
  std::vector<float> values;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = *parameters_[i];
    const int64_t columns = parameter.shape.count() / parameter.shape[0];
    const int64_t used = parameter.used_rows * columns;
    values.assign(static_cast<size_t>(parameter.shape.count()), 0.0F);
    switch (parameter.init) {
      case Init::zeros:
        break;
      case Init::ones:
        std::fill(values.begin(), values.begin() + used, 1.0F);
        break;
      case Init::normal:
        draw_normal(philox_key(seed, kInitPurpose, i), parameter.init_std, values.data(), used);
        break;
    }
    set_value(device, parameter, values.data());
  }
}

}  // namespace fp8train
