// The input is a scale, random bits and fp32 numbers. Casts to E4M3, E5M2, FP16 and BF16 are held
// against a search for the nearest value of the format's definition, those of arrays and of all
// levels of the processor against the scalar ones; a stochastic cast is one of the two neighbours.

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "../numeric/reference.h"
#include "numeric/bulk.h"
#include "numeric/convert.h"
#include "numeric/rounding.h"

namespace {

using namespace fp8train;

void check(bool holds) {
  if (!holds) {
    std::abort();
  }
}

template <typename T>
uint32_t code_of(T value) {
  uint32_t code = 0;
  std::memcpy(&code, &value, sizeof value);
  return code;
}

/// Without the sign.
template <typename T>
uint32_t magnitude_of(T value) {
  return code_of(value) & ~(1U << (8 * sizeof(T) - 1));
}

template <typename T>
const std::vector<double>& values() {
  static const std::vector<double> kValues = test::magnitudes<T>();
  return kValues;
}

template <typename T>
void check_scalar(float value, uint32_t random) {
  const uint32_t largest = test::definition<T>().max_code;
  const double magnitude = std::fabs(static_cast<double>(value));
  const T code = encode<T>(value);
  const T unlimited = encode_no_saturate<T>(value);
  const T stochastic = encode_stochastic<T>(value, random);
  if (std::isnan(value)) {
    check(std::isnan(decode(code)) && std::isnan(decode(unlimited)) &&
          std::isnan(decode(stochastic)));
    return;
  }
  const uint32_t nearest = test::nearest_code(values<T>(), magnitude);
  check(magnitude_of(code) == std::min(nearest, largest));
  check(std::signbit(decode(code)) == std::signbit(value));
  check(nearest > largest ? !std::isfinite(decode(unlimited)) : magnitude_of(unlimited) == nearest);
  if (magnitude_of(code) <= largest) {
    check(decode(code) ==
          std::copysign(static_cast<float>(values<T>()[magnitude_of(code)]), value));
    check(code_of(encode<T>(decode(code))) == code_of(code));
  }
  // One of the two around the value, which is inside of the range.
  const uint32_t either = magnitude_of(stochastic);
  check(either <= largest);
  const double limited = std::min(magnitude, values<T>()[largest]);
  check(values<T>()[either] == limited ||
        (values<T>()[either] < limited ? values<T>()[either + 1] > limited
                                       : values<T>()[either - 1] < limited));
}

void check_bf16(float value) {
  const float back = decode(encode<bf16>(value));
  if (std::isnan(value)) {
    check(std::isnan(back));
    return;
  }
  const uint32_t bits = bits_of(value);
  const uint32_t low = bits & 0xFFFF0000U;
  const uint32_t rest = bits & 0xFFFFU;
  const bool up = rest > 0x8000U || (rest == 0x8000U && (low & 0x10000U) != 0);
  check(bits_of(back) == low + (up ? 0x10000U : 0U));
}

template <typename T>
void check_arrays(const std::vector<float>& numbers, float scale) {
  std::vector<T> codes(numbers.size());
  encode(numbers.data(), scale, codes.data(), numbers.size());
  std::vector<float> back(numbers.size());
  decode(codes.data(), back.data(), codes.size());
  for (size_t i = 0; i < numbers.size(); ++i) {
    const float scaled = scale == 1.0F ? numbers[i] : numbers[i] * scale;
    const T expected = encode<T>(scaled);
    check(code_of(codes[i]) == code_of(expected) ||
          (std::isnan(decode(codes[i])) && std::isnan(scaled)));
    check(bits_of(back[i]) == bits_of(decode(codes[i])) || std::isnan(back[i]));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 8 + sizeof(float)) {
    return 0;
  }
  float scale = 1;
  uint32_t random = 0;
  std::memcpy(&scale, data, sizeof scale);
  std::memcpy(&random, data + 4, sizeof random);
  std::vector<float> numbers((size - 8) / sizeof(float));
  std::memcpy(numbers.data(), data + 8, numbers.size() * sizeof(float));
  for (const float number : numbers) {
    // And the neighbours of where its code ends: ties and what lies next to them.
    const float code = decode(encode<e4m3>(number));
    for (const float value : {number, code, std::nextafterf(code, 0), code * 1.0625F,
                              std::nextafterf(code * 1.0625F, 1e30F)}) {
      check_scalar<e4m3>(value, random);
      check_scalar<e5m2>(value, random);
      check_scalar<f16>(value, random);
      check_bf16(value);
    }
  }
  for (const float each : {1.0F, scale}) {
    check_arrays<e4m3>(numbers, each);
    check_arrays<e5m2>(numbers, each);
    check_arrays<f16>(numbers, each);
    check_arrays<bf16>(numbers, each);
  }
  return 0;
}
