#pragma once
// All values or gradients of a model as fp32 on the host, one parameter after the other.

#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "nn/parameter.h"

namespace fp8train::test {

inline std::vector<float> value_on_host(Device& device, const Parameter& parameter) {
  std::vector<float> values(static_cast<size_t>(parameter.shape.count()));
  value_to_host(device, parameter, values.data());
  return values;
}

inline std::vector<float> values_of(Device& device, const ParameterStore& store) {
  std::vector<float> all;
  for (const auto& parameter : store.all()) {
    const std::vector<float> values = value_on_host(device, *parameter);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

/// Every byte 0xFF: NaN in fp32, bf16, e4m3 and e5m2. Gaps between gradients stay zero.
inline void fill_gradients_with_nan(Device& device, const ParameterStore& store) {
  for (const auto& parameter : store.all()) {
    const View& codes = parameter->stored_gradient.codes;
    const std::vector<uint8_t> ones(codes.bytes(), 0xFF);
    if (parameter->trained) {
      copy_from_host(device, codes, ones.data());
    }
  }
}

/// The first element of a parameter that is stored in fp32 becomes `value`; what it was.
inline float exchange_first(Device& device, const ParameterStore& store, const std::string& name,
                            float value) {
  for (const auto& parameter : store.all()) {
    if (parameter->name == name) {
      const float before = value_on_host(device, *parameter).front();
      copy_from_host(device, View{parameter->value.data, DType::f32, {1}}, &value);
      return before;
    }
  }
  throw std::invalid_argument("no parameter " + name);
}

inline std::vector<float> gradient_of(Device& device, const Parameter& parameter) {
  const Tensor fp32(device, DType::f32, parameter.shape, MemoryCategory::workspace);
  ops::read_stored(device.stream(), parameter.stored_gradient, fp32);
  return to_host_f32(device, fp32);
}

inline std::vector<float> gradients_of(Device& device, const ParameterStore& store) {
  std::vector<float> all;
  for (const auto& parameter : store.all()) {
    const std::vector<float> gradient = gradient_of(device, *parameter);
    all.insert(all.end(), gradient.begin(), gradient.end());
  }
  return all;
}

}  // namespace fp8train::test
