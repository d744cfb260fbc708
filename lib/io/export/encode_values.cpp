#include "io/export/encode_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/error.h"
#include "numeric/bulk.h"

namespace fp8train {

std::vector<std::byte> encoded(const std::vector<float>& values, DType dtype,
                               const std::string& name) {
  std::vector<std::byte> bytes(values.size() * size_of(dtype));
  if (dtype == DType::f32) {
    std::copy(values.begin(), values.end(), reinterpret_cast<float*>(bytes.data()));
  } else if (dtype == DType::bf16) {
    encode(values.data(), 1.0F, reinterpret_cast<bf16*>(bytes.data()), values.size());
  } else {
    constexpr float kLimit = 65520.0F;  // from here on fp16 rounds to infinity
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::abs(values[i]) >= kLimit) {
        throw CheckpointError(
            fmt::format("{} element {} is {}, which fp16 cannot hold; export bf16 or fp32", name, i,
                        values[i]));
      }
    }
    encode(values.data(), 1.0F, reinterpret_cast<f16*>(bytes.data()), values.size());
  }
  return bytes;
}

std::vector<std::byte> encoded_q8_0(const std::vector<float>& values, const std::string& name) {
  constexpr size_t kBlock = 32;
  constexpr float kLargest = 127.0F;
  check(values.size() % kBlock == 0, "Q8_0 has blocks of 32 values");
  std::vector<float> scales;
  for (size_t begin = 0; begin < values.size(); begin += kBlock) {
    float amax = 0.0F;
    for (size_t i = begin; i < begin + kBlock; ++i) {
      amax = std::max(amax, std::abs(values[i]));
    }
    scales.push_back(amax / kLargest);
  }
  const std::vector<std::byte> stored = encoded(scales, DType::f16, name + " (a scale of Q8_0)");
  std::vector<std::byte> bytes;
  bytes.reserve(values.size() + stored.size());
  for (size_t block = 0; block < scales.size(); ++block) {
    bytes.insert(bytes.end(), {stored[2 * block], stored[2 * block + 1]});
    const bool is_zero = stored[2 * block] == std::byte{0} && stored[2 * block + 1] == std::byte{0};
    const float inverse = is_zero ? 0.0F : 1.0F / scales[block];
    for (size_t i = block * kBlock; i < (block + 1) * kBlock; ++i) {
      bytes.push_back(static_cast<std::byte>(static_cast<int8_t>(std::round(values[i] * inverse))));
    }
  }
  return bytes;
}

}  // namespace fp8train
