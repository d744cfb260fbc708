#include "nn/parameter.h"

#include <cmath>
#include <numbers>

#include "base/error.h"
#include "base/philox.h"

namespace fp8train {
namespace {

constexpr int64_t kAlignment = 64;         // elements: 256 bytes of fp32
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

}  // namespace

Parameter* ParameterStore::add(Parameter parameter) {
  check(values_.empty(), "parameters are added before the store is allocated");
  parameter.offset = elements_;
  parameter.used_rows = parameter.used_rows == 0 ? parameter.shape[0] : parameter.used_rows;
  elements_ += (parameter.shape.count() + kAlignment - 1) / kAlignment * kAlignment;
  parameters_.push_back(std::make_unique<Parameter>(std::move(parameter)));
  return parameters_.back().get();
}

void ParameterStore::allocate(Device& device, MemoryCategory values, bool with_gradients) {
  values_ = Tensor(device, DType::f32, {elements_}, values);
  fill_zero(device, values_);
  if (with_gradients) {
    gradients_ = Tensor(device, DType::f32, {elements_}, MemoryCategory::gradients);
    fill_zero(device, gradients_);
  }
  for (const auto& parameter : parameters_) {
    parameter->value = {values_.view().as<float>() + parameter->offset, DType::f32,
                        parameter->shape};
    if (!with_gradients) {
      continue;
    }
    parameter->gradient = {gradients_.view().as<float>() + parameter->offset, DType::f32,
                           parameter->shape};
  }
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
    copy_from_host(device, parameter.value, values.data());
  }
}

}  // namespace fp8train
