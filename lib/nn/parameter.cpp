#include "nn/parameter.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <numbers>
#include <utility>

#include "base/error.h"
#include "base/philox.h"
#include "device/device_questions.h"

namespace fp8train {
namespace {

constexpr uint64_t kInitPurpose = 0x1A17;  // of philox_key

/// Elements first .. first + count - 1 of a tensor of standard normal values, by Box-Muller in
/// double, rounded to float.
void draw_normal(uint64_t key, float deviation, float* values, int64_t first, int64_t count) {
  constexpr double kTwoTo32 = 4294967296.0;
#pragma omp parallel for schedule(static)
  for (int64_t i = first / 4 * 4; i < first + count; i += 4) {
    const PhiloxBlock block = philox(key, 0, static_cast<uint64_t>(i / 4));
    double normal[4];
    for (int pair = 0; pair < 2; ++pair) {
      const double u = (block.word[2 * pair] + 0.5) / kTwoTo32;
      const double v = block.word[2 * pair + 1] / kTwoTo32;
      const double radius = std::sqrt(-2.0 * std::log(u));
      normal[2 * pair] = radius * std::cos(2.0 * std::numbers::pi * v);
      normal[2 * pair + 1] = radius * std::sin(2.0 * std::numbers::pi * v);
    }
    for (int64_t j = std::max(i, first); j < std::min(i + 4, first + count); ++j) {
      values[j - first] = static_cast<float>(normal[j - i] * deviation);
    }
  }
}

/// Elements of a tensor of values that are uniform in [-bound, bound).
void draw_uniform(uint64_t key, float bound, float* values, int64_t first, int64_t count) {
  constexpr double kTwoTo32 = 4294967296.0;
  for (int64_t i = first; i < first + count; ++i) {
    const PhiloxBlock block = philox(key, 0, static_cast<uint64_t>(i / 4));
    values[i - first] = static_cast<float>((2.0 * block.word[i % 4] / kTwoTo32 - 1.0) * bound);
  }
}

/// The initial values of a part of a parameter.
void draw_initial(const Parameter& parameter, const Sharding& part, uint64_t seed,
                  std::vector<float>& values) {
  const int64_t used = parameter.used_rows * part.width();
  const uint64_t key = philox_key(seed, kInitPurpose, part.index);
  values.assign(static_cast<size_t>(part.shape().count()), 0.0F);
  part.for_each_stretch([&](int64_t local, int64_t element, int64_t count) {
    float* const drawn = values.data() + local;
    count = std::clamp<int64_t>(used - element, 0, count);
    if (parameter.init == Init::ones) {
      std::fill_n(drawn, count, parameter.init_std == 0.0F ? 1.0F : parameter.init_std);
    } else if (parameter.init == Init::normal) {
      draw_normal(key, parameter.init_std, drawn, element, count);
    } else if (parameter.init == Init::uniform) {
      draw_uniform(key, parameter.init_std, drawn, element, count);
    }
  });
}

}  // namespace

Parameter* ParameterStore::add(Parameter parameter) {
  check(values_.empty(), "parameters are added before the store is allocated");
  if (parameter.sharding.whole.rank() == 0) {
    parameter.sharding =
        whole_of(parameter.shape, parameter.is_added ? next_added_index() : next_index());
  } else if (parameter.shape.rank() == 0) {
    parameter.shape = parameter.sharding.shape();
  }
  check(parameter.sharding.shape() == parameter.shape, "a parameter has the shape of its part");
  const int64_t rows = parameter.sharding.whole[0];
  parameter.used_rows = parameter.used_rows == 0 ? rows : parameter.used_rows;
  added_ += parameter.is_added ? 1 : 0;
  Parameters& list = present_ ? parameters_ : absent_;
  return list.emplace_back(std::make_unique<Parameter>(std::move(parameter))).get();
}

std::vector<std::string> ParameterStore::names() const {
  std::multimap<uint64_t, std::string> by_index;
  for (const Parameters* const list : {&parameters_, &absent_}) {
    for (const auto& parameter : *list) {
      by_index.emplace(parameter->sharding.index, parameter->name);
    }
  }
  std::vector<std::string> names;
  for (auto& [index, name] : by_index) {
    names.push_back(std::move(name));
  }
  return names;
}

std::vector<size_t> ParameterStore::unit_begins() const {
  std::vector<size_t> begins = unit_begins_;
  begins.push_back(parameters_.size());
  return begins;
}

MemoryCategory value_category(const Parameter& parameter) {
  if (!parameter.formats.is_master || parameter.formats.value.remainder) {
    return MemoryCategory::weights;
  }
  return parameter.offloads && parameter.gathered.form != GatheredForm::value
             ? MemoryCategory::offloaded
             : MemoryCategory::master_weights;
}

void Parameter::set_stored(const Encoded& of_value, const Encoded& of_gradient) {
  const auto fp32 = [](const Encoded& tensor) {
    return tensor.format == TensorFormat{} ? tensor.codes : View{};
  };
  stored_value = of_value;
  stored_gradient = of_gradient;
  value = fp32(of_value);
  gradient = fp32(of_gradient);
}

void ParameterStore::allocate_wholes(Device& device, bool with_gradients, bool exchanged) {
  sum_.resize(parameters_.size());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = *parameters_[i];
    const ParameterFormats& formats = parameter.formats;
    values_.add(formats.value, parameter.shape, value_category(parameter),
                parameter.of_experts() ? 1 : 0);
    if (!parameter.trained) {
      gradients_.skip();
    } else if (with_gradients) {
      const TensorFormat running = running_gradient(formats, exchanged);
      const int queue = wire_index(formats.gradient_wire);
      const int64_t alignment = range_alignment(formats.gradient_wire);
      gradients_.add(running, parameter.shape, MemoryCategory::gradients, queue, alignment);
      if (running != formats.gradient) {
        sum_[i] = sums_.add(formats.gradient, parameter.shape, MemoryCategory::gradients, queue,
                            alignment);
      }
    }
  }
  values_.allocate(device);
  gradients_.allocate(device);
  sums_.allocate(device);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = *parameters_[i];
    parameter.set_stored(values_.at(i), with_gradients ? gradients_.at(i) : Encoded{});
    parameter.updated = {.value = parameter.stored_value,
                         .gradient = sum_[i] ? sums_.at(*sum_[i]) : parameter.stored_gradient};
  }
  if (with_gradients) {
    allocate_automatic(device);
  }
}

void ParameterStore::allocate(Device& device, bool with_gradients, const StoreSharing& sharing) {
  check(!sharing.shards || !sharing.owners, "ranks share parts of parameters or whole ones");
  if (sharing.shards) {
    shards_ = sharing.shards(*this);
    shards_->allocate(device);
    return allocate_automatic(device);
  }
  allocate_wholes(device, with_gradients, sharing.exchanged);
  if (sharing.owners) {
    divide_updates(sharing.owners(*this));
  }
}

void ParameterStore::divide_updates(UpdateOwners owners) {
  check(owners.of.size() == parameters_.size(), "each parameter has an owner");
  owners_ = std::move(owners);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (owners_->of[i] != owners_->rank) {
      Encoded& value = parameters_[i]->updated.value;
      value = {View{nullptr, value.codes.dtype, {0}}, value.format, View{}};
    }
  }
}

std::optional<StoreShards::Share> ParameterStore::share() const {
  if (shards_) {
    return shards_->share();
  }
  return owners_ ? std::optional(StoreShards::Share{owners_->rank, owners_->ranks}) : std::nullopt;
}

View ParameterStore::operand_memory(Device& device, const Parameter& parameter,
                                    MemoryCategory category, DType dtype, const Shape& shape) {
  return shards_ ? shards_->operand_memory(device, parameter, category, dtype, shape)
                 : operands_.emplace_back(device, dtype, shape, category).view();
}

Encoded ParameterStore::exchanged_gradients(const StoredPool::Stretch& stretch) const {
  const std::vector<size_t>& all = gradients_.tensors_of(stretch.buffer);
  const std::optional<size_t>& first = sum_[all[stretch.begin]];
  if (!first) {
    return {};
  }
  const size_t buffer = sums_.buffer_of(*first);
  check(sums_.tensors_of(buffer).size() == all.size(), "sums lie as the gradients do");
  return sums_.flat({buffer, stretch.begin, stretch.end});
}

std::vector<bool> overwritten_of(const Parameters& parameters) {
  std::vector<bool> of_parameter;
  for (const auto& parameter : parameters) {
    of_parameter.push_back(parameter->overwritten);
  }
  return of_parameter;
}

std::vector<View> cleared_gradients(const StoredPool& gradients, const Parameters& parameters) {
  std::vector<View> cleared;
  const std::vector<bool> overwritten = overwritten_of(parameters);
  for (size_t buffer = 0; buffer < gradients.buffers(); ++buffer) {
    if (gradients.owns(buffer)) {
      const std::vector<View> of_buffer = gradients.words_without(buffer, overwritten);
      cleared.insert(cleared.end(), of_buffer.begin(), of_buffer.end());
    }
  }
  return cleared;
}

std::vector<View> ParameterStore::cleared_gradients() const {
  return shards_ ? shards_->cleared_gradients()
                 : fp8train::cleared_gradients(gradients_, parameters_);
}

int ParameterStore::wire_index(const TensorFormat& wire) {
  const auto found = std::find(wires_.begin(), wires_.end(), wire);
  if (found != wires_.end()) {
    return static_cast<int>(found - wires_.begin());
  }
  wires_.push_back(wire);
  return static_cast<int>(wires_.size()) - 1;
}

void ParameterStore::allocate_automatic(Device& device) {
  const auto scales_itself = [](const auto& parameter) {
    return parameter->trained && parameter->formats.gradient_wire.policy == ScalePolicy::automatic;
  };
  std::vector<ops::AutoScale> initial;
  std::vector<Parameter*> scaled;
  for (const bool of_experts : {false, true}) {
    for (const auto& parameter : parameters_) {
      if (scales_itself(parameter) && parameter->of_experts() == of_experts) {
        initial.push_back({.elements = parameter->sharding.whole.count()});
        scaled.push_back(parameter.get());
      }
    }
    shared_automatic_ = of_experts ? shared_automatic_ : scaled.size();
  }
  if (initial.empty()) {
    return;
  }
  automatic_ =
      Buffer(device, initial.size() * sizeof(ops::AutoScale), MemoryCategory::scaling_state);
  device.copy_from_host(automatic_.data(), initial.data(), automatic_.bytes());
  for (size_t i = 0; i < scaled.size(); ++i) {
    scaled[i]->automatic = static_cast<ops::AutoScale*>(automatic_.data()) + i;
  }
}

void ParameterStore::scale_sums() {
  for (const auto& parameter : parameters_) {
    parameter->scales_sum = true;
  }
}

std::vector<ops::AutoScale*> ParameterStore::controllers_of(
    const std::vector<size_t>& parameters) const {
  std::vector<ops::AutoScale*> controllers;
  for (const size_t parameter : parameters) {
    if (parameters_[parameter]->automatic != nullptr) {
      controllers.push_back(parameters_[parameter]->automatic);
    }
  }
  return controllers;
}

namespace {

float largest_of(const float* values, int64_t count) {
  float largest = 0.0F;
  for (int64_t i = 0; i < count; ++i) {
    largest =
        std::isnan(largest) || std::fabs(values[i]) <= largest ? largest : std::fabs(values[i]);
  }
  return largest;
}

/// Elements that are encoded at a time: whole blocks.
constexpr int64_t kEncodedPiece = int64_t{1} << 16;
static_assert(kEncodedPiece % kRangeAlignment == 0);

/// Encodes `values` on the host, a piece at a time, and copies the codes to the device: it takes no
/// memory there. `amax`: that of the whole, for a format with one scale.
void upload_encoded(Device& device, const Encoded& to, const float* values, float amax) {
  const bool has_one_scale = codec_of(to.format) == Codec::tensor;
  TensorFormat format = to.format;
  format.rounding = Rounding::nearest_even;
  std::vector<std::byte> codes;
  std::vector<float> scales;
  int64_t begin = 0;
  do {
    const Encoded part = part_of(to, begin, std::min(kEncodedPiece, to.count() - begin));
    const float nothing = 0.0F;  // each rank has the scale, also if it has no element
    const float* const from = part.count() > 0 ? values + begin : &nothing;
    const Shape shape = {std::max<int64_t>(part.count(), 1)};
    codes.assign(storage_bytes(format.dtype, shape), std::byte{0});
    scales.assign(static_cast<size_t>(stored_scales(format, shape.count())), 1.0F);
    if (has_one_scale) {
      scales.back() = amax;
    }
    Encoded piece(View{codes.data(), format.dtype, shape}, format);
    if (!scales.empty()) {
      piece.scales = View{scales.data(), DType::f32, {std::ssize(scales)}};
    }
    ops::store(Stream(DeviceKind::cpu, nullptr, nullptr),
               {.x = ConstView{from, DType::f32, shape},
                .to = piece,
                .step = has_one_scale ? CastStep::codes : CastStep::all});
    if (part.count() > 0) {
      copy_from_host(device, part.codes, codes.data());
    }
    if (!part.scales.empty()) {
      copy_from_host(device, part.scales, scales.data());
    }
    begin += kEncodedPiece;
  } while (begin < to.count());
}

}  // namespace

float largest_magnitude(const std::vector<float>& values) {
  return largest_of(values.data(), std::ssize(values));
}

bool scale_needs_whole(const Parameter& parameter) {
  return codec_of(parameter.formats.value) == Codec::tensor && !parameter.sharding.is_whole();
}

void set_value(Device& device, const Parameter& parameter, const float* values, float amax) {
  if (counts_only(device)) {
    return;
  }
  const Encoded& updated =
      parameter.updated.elsewhere() ? parameter.stored_value : parameter.updated.value;
  if (updated.format == TensorFormat{}) {
    if (updated.count() > 0) {
      copy_from_host(device, updated.codes, values + parameter.updated.first);
    }
    return;
  }
  if (codec_of(updated.format) == Codec::tensor && !scale_needs_whole(parameter)) {
    amax = largest_of(values, parameter.shape.count());
  }
  upload_encoded(device, updated, values + parameter.updated.first, amax);
}

void value_to_host(Device& device, const Parameter& parameter, float* to) {
  if (!parameter.value.empty()) {
    check(parameter.value.dtype == DType::f32, "a parameter's own value is in fp32");
    copy_to_host(device, to, parameter.value);
    return;
  }
  const Tensor fp32(device, DType::f32, parameter.shape, MemoryCategory::workspace);
  ops::read_stored(device.stream(), parameter.stored_value, fp32);
  copy_to_host(device, to, fp32);
}

void ParameterStore::initialize(Device& device, uint64_t seed, bool added_alone) {
  if (counts_only(device)) {
    return;
  }
  std::vector<float> values;
  for (const auto& parameter : parameters_) {
    if (added_alone && !parameter->is_added) {
      continue;
    }
    const Sharding& sharding = parameter->sharding;
    float amax = 0.0F;
    for (int64_t row = 0; scale_needs_whole(*parameter) && row < sharding.whole[0]; ++row) {
      Sharding of_row = whole_of(sharding.whole, sharding.index);
      of_row.runs = {{row, 1}};
      draw_initial(*parameter, of_row, seed, values);
      amax = std::max(amax, largest_magnitude(values));
    }
    draw_initial(*parameter, sharding, seed, values);
    set_value(device, *parameter, values.data(), amax);
  }
}

}  // namespace fp8train
