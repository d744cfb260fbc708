// Stochastic rounding: neighbours only, exact expectation, the documented random stream.

#include "numeric/rounding.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "numeric/reference.h"
#include "numeric/with_type.h"

namespace fp8train {
namespace {

/// Mean of the decoded result over 2^bits evenly spaced random words: the expectation itself when
/// the fraction of `value` is a multiple of 2^-bits.
template <typename T>
double mean_over_random_bits(float value, int bits) {
  double sum = 0;
  const uint64_t count = 1ULL << bits;
  for (uint64_t k = 0; k < count; ++k) {
    sum += static_cast<double>(
        decode(encode_stochastic<T>(value, static_cast<uint32_t>(k << (32 - bits)))));
  }
  return sum / static_cast<double>(count);
}

template <typename T>
void check_neighbours_only() {
  const std::vector<double> values = test::magnitudes<T>();
  const uint32_t max_code = test::definition<T>().max_code;
  std::mt19937 random(5);
  size_t wrong = 0;
  for (int i = 0; i < 300000; ++i) {
    const uint32_t exponent = 95U + static_cast<uint32_t>(random() % 46U);
    const float x = float_of((static_cast<uint32_t>(random()) & 0x807FFFFFU) | exponent << 23);
    const T code = encode_stochastic<T>(x, static_cast<uint32_t>(random()));
    const double magnitude = std::fabs(static_cast<double>(x));
    const auto above = std::upper_bound(values.begin(), values.end() - 1, magnitude);
    const uint32_t low = std::min(static_cast<uint32_t>(above - values.begin()) - 1, max_code);
    const uint32_t high = values[low] == magnitude ? low : std::min(low + 1, max_code);
    constexpr uint32_t kSign = sizeof(T) == 1 ? 0x80U : 0x8000U;
    const uint32_t number = code.bits & (kSign - 1);
    const bool sign_stays = ((code.bits & kSign) != 0) == std::signbit(x);
    wrong += sign_stays && (number == low || number == high) ? 0 : 1;
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("stochastic rounding picks one of the two neighbours", "[numeric]") {
  for_each_type(Fp8Types{} + TypeList<f16>{},
                [](auto tag) { check_neighbours_only<typename decltype(tag)::Type>(); });
}

TEST_CASE("the mean over the random bits is the value: normal results", "[numeric]") {
  for (const float value : {1.0F, 1.0000001F, -1.3F, 3.14159265F, 440.00003F, -0.0175F, 200.7F}) {
    CAPTURE(value);
    CHECK(mean_over_random_bits<e4m3>(value, 20) == static_cast<double>(value));
    CHECK(mean_over_random_bits<e5m2>(value, 21) == static_cast<double>(value));
    CHECK(mean_over_random_bits<f16>(value, 13) == static_cast<double>(value));
    CHECK(mean_over_random_bits<bf16>(value, 16) == static_cast<double>(value));
  }
}

TEST_CASE("the mean over the random bits is the value: subnormal results", "[numeric]") {
  for (const double units : {0.25, 1.0 / 65536, 3.7001953125, 6.99993896484375, 0.5, 2.0}) {
    CAPTURE(units);
    const double in_e4m3 = std::ldexp(units, -9);
    const double in_e5m2 = std::ldexp(units / 2, -16);
    const double in_f16 = std::ldexp(units, -24);
    CHECK(mean_over_random_bits<e4m3>(static_cast<float>(-in_e4m3), 16) == -in_e4m3);
    CHECK(mean_over_random_bits<e5m2>(static_cast<float>(in_e5m2), 17) == in_e5m2);
    CHECK(mean_over_random_bits<f16>(static_cast<float>(in_f16), 16) == in_f16);
  }
  // fp32 subnormals are too small for fp8, but bf16 has them.
  CHECK(encode_stochastic<e4m3>(1e-40F, 0).bits == 0);
  CHECK(encode_stochastic<e4m3>(0x1p-41F, 0).bits == 1);  // 2^-32 of the smallest subnormal
  CHECK(encode_stochastic<e4m3>(0x1p-41F, 1).bits == 0);
  CHECK(mean_over_random_bits<bf16>(1.2345e-40F, 16) == static_cast<double>(1.2345e-40F));
}

TEST_CASE("stochastic rounding to int8 picks a neighbour with the mean of the value", "[numeric]") {
  for (const float value :
       {0.0F, 0.25F, -0.7001953125F, 63.5F, -126.000244140625F, 126.75F, 127.0F}) {
    CAPTURE(value);
    CHECK(mean_over_random_bits<int8_t>(value, 16) == static_cast<double>(value));
    CHECK(encode_stochastic<int8_t>(value, 0) ==
          static_cast<int>(std::copysign(std::ceil(std::fabs(value)), value)));
    CHECK(encode_stochastic<int8_t>(value, 0xFFFFFFFFU) == static_cast<int>(value));
  }
  for (const uint32_t random : {0U, 0xFFFFFFFFU}) {
    CHECK(encode_stochastic<int8_t>(127.0001F, random) == 127);
    CHECK(encode_stochastic<int8_t>(-std::numeric_limits<float>::infinity(), random) == -127);
    CHECK(encode_stochastic<int8_t>(float_of(0xFFC00000U), random) == 0);
  }
}

TEST_CASE("stochastic rounding saturates and keeps NaN", "[numeric]") {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const uint32_t random : {0U, 0xFFFFFFFFU}) {
    CHECK(encode_stochastic<e4m3>(449.0F, random).bits == 0x7E);
    CHECK(encode_stochastic<e4m3>(-kInfinity, random).bits == 0xFE);
    CHECK(encode_stochastic<e5m2>(1e9F, random).bits == 0x7B);
    CHECK(encode_stochastic<f16>(1e9F, random).bits == 0x7BFF);
    CHECK(encode_stochastic<bf16>(3.4028e38F, random).bits == 0x7F7F);
    CHECK(encode_stochastic<bf16>(-kInfinity, random).bits == 0xFF80);
    CHECK(encode_stochastic<e4m3>(float_of(0xFFC00000U), random).bits == 0x7F);
    CHECK(encode_stochastic<e5m2>(float_of(0x7F800001U), random).bits == 0x7F);
    CHECK(encode_stochastic<bf16>(float_of(0x7F800001U), random).bits == 0x7FFF);
    CHECK(encode_stochastic<e4m3>(-0.0F, random).bits == 0x80);
  }
}

TEST_CASE("four consecutive elements share one Philox block", "[numeric]") {
  for (const uint64_t index : {0ULL, 1ULL, 2ULL, 3ULL, 4ULL, 6ULL, (1ULL << 40) + 3}) {
    const PhiloxBlock block =
        philox(philox_key(7, kStochasticRoundingPurpose, 11), 1000, index / 4);
    CHECK(stochastic_bits(7, 1000, 11, index) == block.word[index % 4]);
    CHECK(stochastic_block(7, 1000, 11, index / 4).word[index % 4] == block.word[index % 4]);
  }
  CHECK(stochastic_bits(7, 1000, 11, 5) != stochastic_bits(7, 1001, 11, 5));
  CHECK(stochastic_bits(7, 1000, 11, 5) != stochastic_bits(7, 1000, 12, 5));
  CHECK(stochastic_bits(7, 1000, 11, 5) != stochastic_bits(8, 1000, 11, 5));
}

TEST_CASE("the documented random stream is unbiased", "[numeric]") {
  constexpr uint64_t kCount = 400000;
  constexpr float kValue = 1.03F;  // between 1 and 1.125: probability 0.24 of the upper one
  double sum = 0;
  for (uint64_t i = 0; i < kCount; ++i) {
    sum +=
        static_cast<double>(decode(encode_stochastic<e4m3>(kValue, stochastic_bits(1, 2, 3, i))));
  }
  const double deviation = 0.125 * std::sqrt(0.24 * 0.76 / static_cast<double>(kCount));
  CHECK(std::fabs(sum / static_cast<double>(kCount) - static_cast<double>(kValue)) < 4 * deviation);
}

}  // namespace fp8train
