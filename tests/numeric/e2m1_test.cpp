// E2M1 and the scales of NVFP4, held against definitions written out here.

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "numeric/bits.h"
#include "numeric/convert.h"
#include "numeric/dtype.h"
#include "numeric/hadamard.h"
#include "numeric/rounding.h"
#include "numeric/scale.h"

namespace fp8train {
namespace {

constexpr float kValues[] = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// The code of the nearest value, ties to the even code; by search.
uint8_t nearest(float value) {
  const auto sign = static_cast<uint8_t>(std::signbit(value) ? 8 : 0);
  const double magnitude = std::min(std::fabs(static_cast<double>(value)), 100.0);
  uint8_t best = 0;
  for (uint8_t code = 1; code < 8; ++code) {
    const double before = std::fabs(magnitude - kValues[best]);
    const double after = std::fabs(magnitude - kValues[code]);
    if (after < before || (after == before && code % 2 == 0)) {
      best = code;
    }
  }
  return static_cast<uint8_t>(best | sign);
}

TEST_CASE("e2m1 has four bits and no bytes of its own", "[numeric]") {
  CHECK(facts_of(DType::e2m1).bits == 4);
  CHECK(bytes_of_rows(DType::e2m1, 3, 16) == 24);
  CHECK(bytes_of_rows(DType::e2m1, 3, 5) == 9);
  CHECK(bytes_of_rows(DType::e4m3, 3, 5) == 15);
  CHECK(bytes_of_rows(DType::f32, 3, 5) == 60);
  CHECK(format_max(DType::e2m1) == 6.0F);
}

TEST_CASE("every code of e2m1 is read and written", "[numeric]") {
  for (uint8_t code = 0; code < 16; ++code) {
    const float value = decode(e2m1{code});
    CHECK(std::fabs(value) == kValues[code & 7U]);
    CHECK(std::signbit(value) == (code >= 8));
    CHECK(encode<e2m1>(value).bits == code);
    CHECK(encode_stochastic<e2m1>(value, 0xFFFFFFFFU).bits == code);
  }
}

TEST_CASE("encode<e2m1> is the nearest value, ties to even", "[numeric]") {
  size_t wrong = 0;
  for (uint32_t upper = 0; upper < 0x10000U; ++upper) {  // every bf16 number, and its neighbours
    for (const uint32_t lower : {0U, 1U, 0xFFFFU}) {
      const float value = float_of(upper << 16 | lower);
      if (std::isfinite(value)) {
        wrong += encode<e2m1>(value).bits == nearest(value) ? 0 : 1;
      }
    }
  }
  CHECK(wrong == 0);
  CHECK(encode<e2m1>(kInfinity).bits == 7);
  CHECK(encode<e2m1>(-kInfinity).bits == 15);
  CHECK(encode<e2m1>(kNan).bits == 7);
  CHECK(encode<e2m1>(-kNan).bits == 7);
}

TEST_CASE("the mean of stochastic e2m1 is the value", "[numeric]") {
  for (int i = -96; i <= 96; ++i) {  // multiples of 2^-4, up to the largest value
    const float value = static_cast<float>(i) / 16.0F;
    double sum = 0;
    bool neighbours = true;
    for (uint32_t k = 0; k < 1024; ++k) {
      const float rounded = decode(encode_stochastic<e2m1>(value, k << 22));
      sum += static_cast<double>(rounded);
      const double spacing = std::fabs(value) < 2 ? 0.5 : std::fabs(value) < 4 ? 1 : 2;
      neighbours = neighbours && std::fabs(rounded - value) < spacing;
    }
    CAPTURE(value);
    CHECK(sum / 1024 == static_cast<double>(value));
    CHECK(neighbours);
  }
  CHECK(encode_stochastic<e2m1>(7.9F, 0xFFFFFFFFU).bits == 7);
  CHECK(encode_stochastic<e2m1>(-kInfinity, 0xFFFFFFFFU).bits == 15);
}

TEST_CASE("scales of NVFP4 at the ends of the range", "[numeric]") {
  CHECK(two_level_scale(2688.0F) == 1.0F);
  CHECK(two_level_scale(0.0F) == 1.0F);
  CHECK(two_level_scale(kInfinity) == 1.0F);
  CHECK(two_level_scale(1e-42F) == kMaxF32);
  CHECK(std::isnan(two_level_scale(kNan)));
  CHECK(two_level_scale_inv(2688.0F) == 1.0F);
  CHECK(two_level_block_scale(2688.0F, 1.0F).bits == 0x7E);
  CHECK(two_level_block_scale(0.0F, 1.0F).bits == 0);
  CHECK(two_level_block_scale(kInfinity, 1.0F).bits == 0x7E);
  CHECK((two_level_block_scale(kNan, 1.0F).bits & 0x7FU) == 0x7F);
  CHECK(two_level_factor(e4m3{0}, 1.0F) == kMaxF32);
  CHECK(two_level_factor(e4m3{0x38}, 4.0F) == 4.0F);  // 0x38 is 1
  CHECK(std::isnan(two_level_factor(e4m3{0x7F}, 1.0F)));
}

TEST_CASE("the random Hadamard transform is Sylvester's, with signs, and orthogonal", "[numeric]") {
  constexpr int kSigns[] = {1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1};
  for (int i = 0; i < kHadamardSize; ++i) {
    float row[kHadamardSize] = {};
    row[i] = 4.0F;
    random_hadamard(row, 1, 1);
    for (int j = 0; j < kHadamardSize; ++j) {
      const int sign = __builtin_popcount(static_cast<unsigned>(i & j)) % 2 == 0 ? 1 : -1;
      CHECK(row[j] == static_cast<float>(sign * kSigns[i]));
    }
  }
  // Two vectors, one next to the other: their product stays.
  float pair[2 * kHadamardSize];
  float before = 0;
  for (int i = 0; i < kHadamardSize; ++i) {
    pair[2 * i] = static_cast<float>(3 * i % 7 - 3);
    pair[2 * i + 1] = static_cast<float>(5 * i % 11 - 4);
    before += pair[2 * i] * pair[2 * i + 1];
  }
  random_hadamard(pair, 2, 2);
  float after = 0;
  for (int i = 0; i < kHadamardSize; ++i) {
    after += pair[2 * i] * pair[2 * i + 1];
  }
  CHECK(after == before);
}

}  // namespace
}  // namespace fp8train
