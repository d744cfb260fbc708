#include "nn/parameter.h"

#include <algorithm>
#include <cmath>
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

void ParameterStore::allocate(Device& device, bool with_gradients) {
  for (const auto& parameter : parameters_) {
    const ParameterFormats& formats = parameter->formats;
    values_.add(formats.value, parameter->shape,
                formats.is_master ? MemoryCategory::master_weights : MemoryCategory::weights);
    if (with_gradients) {
      gradients_.add(formats.gradient, parameter->shape, MemoryCategory::gradients,
                     lane_of(formats.gradient_wire));
    }
  }
  values_.allocate(device);
  gradients_.allocate(device);
  int64_t automatic = 0;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = *parameters_[i];
    parameter.stored_value = values_.at(i);
    parameter.stored_gradient = with_gradients ? gradients_.at(i) : StoredTensor{};
    const auto fp32 = [](const StoredTensor& tensor) {
      return tensor.format == TensorFormat{} ? tensor.codes : View{};
    };
    parameter.value = fp32(parameter.stored_value);
    parameter.gradient = fp32(parameter.stored_gradient);
    automatic += parameter.formats.gradient_wire.policy == ScalePolicy::automatic ? 1 : 0;
  }
  if (automatic > 0 && with_gradients) {
    allocate_automatic(device, automatic);
  }
}

int ParameterStore::lane_of(const TensorFormat& wire) {
  const auto found = std::find(wires_.begin(), wires_.end(), wire);
  if (found != wires_.end()) {
    return static_cast<int>(found - wires_.begin());
  }
  wires_.push_back(wire);
  return static_cast<int>(wires_.size()) - 1;
}

void ParameterStore::allocate_automatic(Device& device, int64_t count) {
  const std::vector<ops::AutoScale> initial(static_cast<size_t>(count));
  automatic_ = Tensor(device, DType::i64, {count}, MemoryCategory::scaling_state);
  static_assert(sizeof(ops::AutoScale) == sizeof(int64_t));
  copy_from_host(device, automatic_, initial.data());
  auto* next = automatic_.view().as<ops::AutoScale>();
  for (const auto& parameter : parameters_) {
    if (parameter->formats.gradient_wire.policy == ScalePolicy::automatic) {
      parameter->automatic = next++;
    }
  }
}

void set_value(Device& device, const Parameter& parameter, const float* values) {
  if (!parameter.value.empty()) {
    copy_from_host(device, parameter.value, values);
    return;
  }
  const Tensor fp32 = staging(device, parameter);
  copy_from_host(device, fp32, values);
  StoredTensor to = parameter.stored_value;
  to.format.rounding = Rounding::nearest_even;
  ops::store(device.stream(), {.x = fp32, .to = to});
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
