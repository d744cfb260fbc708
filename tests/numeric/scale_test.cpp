// The scale functions in their ordinary and degenerate cases.

#include "numeric/scale.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

namespace fp8train {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kDenormal = 1e-45F;
constexpr float kTiny = 1e-37F;  // 448 / 1e-37 overflows

}  // namespace

TEST_CASE("delayed scale", "[numeric]") {
  CHECK(delayed_scale(2.0F, 1.0F, kMaxE4M3, 0) == 224.0F);
  CHECK(delayed_scale(2.0F, 1.0F, kMaxE4M3, 3) == 28.0F);
  CHECK(delayed_scale(2.0F, 1.0F, kMaxE4M3, -1) == 448.0F);
  CHECK(delayed_scale(3.0F, 1.0F, kMaxE5M2, 0) == 57344.0F / 3.0F);  // no power of two
  CHECK(delayed_scale(0.0F, 5.0F, kMaxE4M3, 0) == 5.0F);
  CHECK(delayed_scale(kInfinity, 5.0F, kMaxE4M3, 0) == 5.0F);
  CHECK(delayed_scale(kNan, 5.0F, kMaxE4M3, 0) == 5.0F);
  CHECK(delayed_scale(kDenormal, 5.0F, kMaxE4M3, 0) == std::numeric_limits<float>::max());
  CHECK(delayed_scale(kTiny, 5.0F, kMaxE4M3, 0) == std::numeric_limits<float>::max());
}

TEST_CASE("current scale", "[numeric]") {
  CHECK(current_scale(2.0F, kMaxE4M3, 0.0F, false, kMaxF32) == 224.0F);
  CHECK(current_scale(2.0F, kMaxE4M3, 0.0F, true, kMaxF32) == 128.0F);
  CHECK(current_scale(448.0F, kMaxE4M3, 0.0F, true, kMaxF32) == 1.0F);
  CHECK(current_scale(448.1F, kMaxE4M3, 0.0F, true, kMaxF32) == 0.5F);
  for (const float degenerate : {0.0F, kInfinity, kNan}) {
    CHECK(current_scale(degenerate, kMaxE4M3, 0.0F, false, kMaxF32) == 1.0F);
    CHECK(current_scale(degenerate, kMaxE4M3, 0.0F, true, kMaxF32) == 1.0F);
  }
  CHECK(current_scale(0.0F, kMaxE4M3, 0.5F, false, kMaxF32) == 896.0F);  // epsilon
  CHECK(current_scale(kNan, kMaxE4M3, 0.5F, false, kMaxF32) == 1.0F);
  CHECK(current_scale(kDenormal, kMaxE4M3, 0.0F, false, kMaxF32) == kMaxF32);
  CHECK(current_scale(kTiny, kMaxE4M3, 0.0F, false, 3.0F) == 3.0F);
  CHECK(current_scale(kTiny, kMaxE4M3, 0.0F, true, kMaxF32) == 0x1p127F);
}

TEST_CASE("a current scale never lets a finite tensor saturate by more than rounding",
          "[numeric]") {
  for (float amax = 1.3e-30F; amax < 1e30F; amax *= 1.37F) {
    const float scale = current_scale(amax, kMaxE4M3, 0.0F, false, kMaxF32);
    REQUIRE(amax * scale <= 448.0001F);
    REQUIRE(amax * scale > 447.999F);
    REQUIRE(amax * current_scale(amax, kMaxE4M3, 0.0F, true, kMaxF32) <= 448.0F);
  }
}

TEST_CASE("powers of two and reciprocals", "[numeric]") {
  CHECK(pow2_floor(1.0F) == 1.0F);
  CHECK(pow2_floor(1.99999988F) == 1.0F);
  CHECK(pow2_floor(0.3F) == 0.25F);
  CHECK(pow2_floor(kMaxF32) == 0x1p127F);
  CHECK(power_of_two(0) == 1.0F);
  CHECK(power_of_two(-126) == 0x1p-126F);
  CHECK(power_of_two(127) == 0x1p127F);
  CHECK(power_of_two(500) == 0x1p127F);
  CHECK(reciprocal(3.0F) == 1.0F / 3.0F);
}

TEST_CASE("E8M0 scales that are rounded down are the OCP specification's and torchao's",
          "[numeric]") {
  const uint32_t even = e8m0_carry(3);
  CHECK(e8m0_scale_down(256.0F, kMaxE4M3, 0).bits == 127);
  CHECK(e8m0_scale_down(511.9F, kMaxE4M3, 0).bits == 127);  // 448 is the largest code
  CHECK(e8m0_scale_down(512.0F, kMaxE4M3, 0).bits == 128);
  CHECK(e8m0_scale_down(495.9F, kMaxE4M3, even).bits == 127);
  CHECK(e8m0_scale_down(496.0F, kMaxE4M3, even).bits == 128);  // as E4M3 it would be 512
  CHECK(e8m0_scale_down(480.0F, kMaxE5M2, e8m0_carry(2)).bits == 127 + 9 - 15);
  CHECK(e8m0_scale_down(0.0F, kMaxE4M3, even).bits == 0x00);
  CHECK(e8m0_scale_down(kDenormal, kMaxE4M3, even).bits == 0x00);
  CHECK(e8m0_scale_down(0x1p-118F, kMaxE4M3, 0).bits == 1);
  CHECK(e8m0_scale_down(kMaxF32, kMaxE4M3, 0).bits == 127 + 127 - 8);
  CHECK(e8m0_scale_down(kMaxF32, kMaxE4M3, even).bits == 0xFF);
  CHECK(e8m0_scale_down(kInfinity, kMaxE4M3, 0).bits == 0xFF);
  CHECK(e8m0_scale_down(float_of(0x7FFFFFFFU), kMaxE4M3, even).bits == 0xFF);
}

TEST_CASE("E8M0 scale never lets an element saturate", "[numeric]") {
  CHECK(e8m0_scale(448.0F, kMaxE4M3).bits == 127);
  CHECK(e8m0_scale(std::nextafter(448.0F, kInfinity), kMaxE4M3).bits == 128);
  CHECK(e8m0_scale(1.0F, kMaxE4M3).bits == 127 - 8);
  CHECK(e8m0_scale(0.0F, kMaxE4M3).bits == 0x00);
  CHECK(e8m0_scale(kDenormal, kMaxE4M3).bits == 0x00);
  CHECK(e8m0_scale(kInfinity, kMaxE4M3).bits == 0xFE);
  CHECK(e8m0_scale(kNan, kMaxE4M3).bits == 0xFF);
  for (float amax = 1.3e-30F; amax < 1e30F; amax *= 1.37F) {
    const float scaled = amax * decode_reciprocal(e8m0_scale(amax, kMaxE4M3));
    REQUIRE(scaled <= 448.0F);
    REQUIRE(scaled > 224.0F);
  }
}

}  // namespace fp8train
