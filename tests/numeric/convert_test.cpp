// numeric/convert.h against the brute-force reference.

#include "numeric/convert.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "numeric/reference.h"
#include "numeric/with_type.h"

namespace fp8train {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <typename T>
constexpr uint32_t kSign = sizeof(T) == 1 ? 0x80U : 0x8000U;

template <typename T>
constexpr uint32_t kNanCode = kSign<T> - 1U;

/// Every value of the format, every midpoint between two, and the fp32 neighbours of both.
template <typename T>
std::vector<float> ties_and_neighbours() {
  std::vector<float> inputs;
  const std::vector<double> values = test::magnitudes<T>();
  for (size_t i = 0; i + 1 < values.size(); ++i) {
    for (const double center : {values[i], (values[i] + values[i + 1]) / 2}) {
      const auto x = static_cast<float>(center);
      inputs.push_back(x);
      inputs.push_back(std::nextafter(x, kInfinity));
      inputs.push_back(std::nextafter(x, -kInfinity));
    }
  }
  return inputs;
}

/// Random patterns over all exponents, half of them near the format's range, and fp32 subnormals.
std::vector<float> random_floats() {
  std::mt19937 random(12);
  std::vector<float> inputs;
  for (int i = 0; i < 400000; ++i) {
    const uint32_t bits = static_cast<uint32_t>(random());
    inputs.push_back(float_of(bits));
    inputs.push_back(float_of((bits & 0x807FFFFFU) | (100U + (bits >> 3) % 50U) << 23));
    inputs.push_back(float_of(bits & 0x807FFFFFU));
  }
  return inputs;
}

/// Counts inputs whose code differs from the reference, either sign.
template <typename T>
size_t wrong_codes(const std::vector<float>& inputs, bool saturate) {
  const std::vector<double> values = test::magnitudes<T>();
  const uint32_t max_code = test::definition<T>().max_code;
  size_t wrong = 0;
  for (const float input : inputs) {
    for (const float x : {input, -input}) {
      const uint32_t code = saturate ? encode<T>(x).bits : encode_no_saturate<T>(x).bits;
      const uint32_t nearest = test::nearest_code(values, std::fabs(static_cast<double>(x)));
      const uint32_t limited = saturate ? std::min(nearest, max_code) : nearest;
      const uint32_t number = limited | (std::signbit(x) ? kSign<T> : 0U);
      const uint32_t expected = std::isnan(x) ? kNanCode<T> : number;
      wrong += code == expected ? 0 : 1;
    }
  }
  return wrong;
}

/// A further FP8 type needs its definition in reference.h.
using Rounded = decltype(Fp8Types{} + TypeList<f16>{});
using Narrow = decltype(Rounded{} + TypeList<bf16>{});

}  // namespace

TEMPLATE_LIST_TEST_CASE("decode gives the value the format defines", "[numeric]", Rounded) {
  const test::FormatDefinition format = test::definition<TestType>();
  size_t wrong = 0;
  for (uint32_t code = 0; code < kSign<TestType>; ++code) {
    using Code = decltype(TestType::bits);
    const float positive = decode(TestType{static_cast<Code>(code)});
    const float negative = decode(TestType{static_cast<Code>(code | kSign<TestType>)});
    bool right = bits_of(negative) == (bits_of(positive) | 0x80000000U);
    if (code <= format.max_code) {
      right = right && static_cast<double>(positive) == test::value_of(format, code);
    } else if (code == format.max_code + 1 && !std::is_same_v<TestType, e4m3>) {
      right = right && positive == kInfinity;
    } else {
      right = right && std::isnan(positive);
    }
    wrong += right ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEMPLATE_LIST_TEST_CASE("encode takes the nearest code, ties to even", "[numeric]", Rounded) {
  CHECK(wrong_codes<TestType>(ties_and_neighbours<TestType>(), true) == 0);
  CHECK(wrong_codes<TestType>(ties_and_neighbours<TestType>(), false) == 0);
  const std::vector<float> edges = {0.0F, kInfinity, kNan, 3.4e38F, 1e-45F, 65520.0F, 65519.9F};
  CHECK(wrong_codes<TestType>(edges, true) == 0);
  CHECK(wrong_codes<TestType>(edges, false) == 0);
  CHECK(wrong_codes<TestType>(random_floats(), true) == 0);
  CHECK(wrong_codes<TestType>(random_floats(), false) == 0);
}

TEMPLATE_LIST_TEST_CASE("every code survives decode and encode", "[numeric]", Narrow) {
  size_t wrong = 0;
  for (uint32_t code = 0; code < 2 * kSign<TestType>; ++code) {
    const TestType original{static_cast<decltype(TestType::bits)>(code)};
    const float value = decode(original);
    const uint32_t back = encode_no_saturate<TestType>(value).bits;
    wrong += std::isnan(value) ? (std::isnan(decode(encode<TestType>(value))) ? 0 : 1)
                               : (back == code ? 0 : 1);
  }
  CHECK(wrong == 0);
}

TEMPLATE_LIST_TEST_CASE("the table of types has the largest value and the last that rounds to it",
                        "[numeric]", Fp8Types) {
  const std::vector<double> values = test::magnitudes<TestType>();
  const size_t largest = test::definition<TestType>().max_code;
  CHECK(format_max(kTypeOf<TestType>) == values[largest]);
  CHECK(saturation_threshold(kTypeOf<TestType>) == (values[largest] + values[largest + 1]) / 2);
}

TEST_CASE("the edges of E4M3 and E5M2 are those of cuda_fp8.h", "[numeric]") {
  CHECK(encode<e4m3>(449.0F).bits == 0x7E);
  CHECK(encode<e4m3>(kInfinity).bits == 0x7E);
  CHECK(encode<e4m3>(-kInfinity).bits == 0xFE);
  CHECK(encode<e4m3>(kNan).bits == 0x7F);
  CHECK(encode<e4m3>(-kNan).bits == 0x7F);
  CHECK(encode_no_saturate<e5m2>(kNan).bits == 0x7F);
  CHECK(encode<f16>(-kNan).bits == 0x7FFF);
  CHECK(encode_no_saturate<e4m3>(464.0F).bits == 0x7E);
  CHECK(encode_no_saturate<e4m3>(465.0F).bits == 0x7F);
  CHECK(encode_no_saturate<e4m3>(kInfinity).bits == 0x7F);
  CHECK(encode<e4m3>(0x1p-10F).bits == 0x00);
  CHECK(encode<e4m3>(-0x1p-10F).bits == 0x80);
  CHECK(encode<e4m3>(0x1.000002p-10F).bits == 0x01);
  CHECK(encode<e5m2>(kInfinity).bits == 0x7B);
  CHECK(encode<e5m2>(-kNan).bits == 0x7F);
  CHECK(encode_no_saturate<e5m2>(61439.0F).bits == 0x7B);
  CHECK(encode_no_saturate<e5m2>(61440.0F).bits == 0x7C);
  CHECK(encode_no_saturate<e5m2>(kInfinity).bits == 0x7C);
}

TEST_CASE("bf16 rounds to nearest even and overflows to infinity", "[numeric]") {
  CHECK(encode<bf16>(1.0F).bits == 0x3F80);
  CHECK(encode<bf16>(float_of(0x3F808000U)).bits == 0x3F80);  // tie, down to even
  CHECK(encode<bf16>(float_of(0x3F818000U)).bits == 0x3F82);  // tie, up to even
  CHECK(encode<bf16>(float_of(0x3F808001U)).bits == 0x3F81);
  CHECK(encode<bf16>(std::numeric_limits<float>::max()).bits == 0x7F80);
  CHECK(encode<bf16>(-kInfinity).bits == 0xFF80);
  CHECK(encode<bf16>(float_of(0x7F800001U)).bits == 0x7FFF);
  CHECK(encode<bf16>(float_of(0xFFFFFFFFU)).bits == 0x7FFF);
  CHECK(encode<bf16>(float_of(0x00008001U)).bits == 0x0001);
  CHECK(encode<bf16>(-0.0F).bits == 0x8000);
}

TEST_CASE("int8 rounds to nearest even, clamps to 127 and maps NaN to 0", "[numeric]") {
  CHECK(encode<int8_t>(2.5F) == 2);
  CHECK(encode<int8_t>(3.5F) == 4);
  CHECK(encode<int8_t>(-2.5F) == -2);
  CHECK(encode<int8_t>(-2.50001F) == -3);
  CHECK(encode<int8_t>(126.6F) == 127);
  CHECK(encode<int8_t>(kInfinity) == 127);
  CHECK(encode<int8_t>(-kInfinity) == -127);
  CHECK(encode<int8_t>(-128.0F) == -127);
  CHECK(encode<int8_t>(kNan) == 0);
  for (int value = -127; value <= 127; ++value) {
    REQUIRE(encode<int8_t>(decode(static_cast<int8_t>(value))) == value);
  }
}

TEST_CASE("E8M0 is a power of two, rounded up", "[numeric]") {
  for (uint32_t bits = 0; bits < 255; ++bits) {
    const e8m0 scale{static_cast<uint8_t>(bits)};
    const float value = decode(scale);
    const int exponent = static_cast<int>(bits) - 127;
    REQUIRE(static_cast<double>(value) == std::ldexp(1.0, exponent));
    REQUIRE(static_cast<double>(decode_reciprocal(scale)) == std::ldexp(1.0, -exponent));
    REQUIRE(encode_e8m0_round_up(value).bits == bits);
    REQUIRE(encode_e8m0_round_up(std::nextafter(value, kInfinity)).bits ==
            std::min(bits + 1, 254U));
    REQUIRE(encode_e8m0_round_up(std::nextafter(value, 0.0F)).bits == bits);
  }
  CHECK(encode_e8m0_round_up(0.0F).bits == 0x00);
  CHECK(encode_e8m0_round_up(1e-45F).bits == 0x00);
  CHECK(encode_e8m0_round_up(std::numeric_limits<float>::max()).bits == 0xFE);
  CHECK(encode_e8m0_round_up(kInfinity).bits == 0xFE);
  CHECK(encode_e8m0_round_up(kNan).bits == 0xFF);
  CHECK(std::isnan(decode(e8m0{0xFF})));
  CHECK(std::isnan(decode_reciprocal(e8m0{0xFF})));
}

TEST_CASE("element access converts as encode and decode do", "[numeric]") {
  const float value = 1.00390625F;  // a tie in bf16
  float as_float = 0;
  bf16 as_bf16{};
  f16 as_f16{};
  store_from_float(&as_float, value);
  store_from_float(&as_bf16, value);
  store_from_float(&as_f16, value);
  CHECK(load_as_float(&as_float) == value);
  CHECK(load_as_float(&as_bf16) == 1.0F);
  CHECK(load_as_float(&as_f16) == value);
  store_from_float(&as_f16, -65520.0F);  // where fp16 rounds to infinity
  CHECK(load_as_float(&as_f16) == -kInfinity);
}

TEST_CASE("the tensor of docs/use/fp8.md has the codes of its table", "[numeric]") {
  const std::vector<float> values = {2.4F, -0.75F, 0.0312F, 0.0004F, 0.000004F};
  const float scale = 448.0F / 2.4F;
  std::vector<int> codes;
  std::vector<float> numbers, read_back;
  for (const float value : values) {
    const auto code = encode<e4m3>(value * scale);
    codes.push_back(code.bits);
    numbers.push_back(decode(code));
    read_back.push_back(decode(code) / scale);
  }
  CHECK(codes == std::vector<int>{0x7E, 0xF1, 0x4C, 0x1A, 0x00});
  CHECK(numbers == std::vector<float>{448, -144, 6, 0.078125F, 0});
  CHECK(read_back[1] / values[1] == Approx(1.029).epsilon(5e-4));
  CHECK(read_back[2] / values[2] == Approx(1.030).epsilon(5e-4));
  CHECK(read_back[3] / values[3] == Approx(1.046).epsilon(5e-4));
  const float of_e5m2 = 57344.0F / 2.4F;
  CHECK(decode(encode<e5m2>(values[4] * of_e5m2)) > 0);
  CHECK(decode(encode<e5m2>(values[1] * of_e5m2)) / of_e5m2 / values[1] ==
        Approx(0.914).epsilon(5e-4));
  CHECK(decode(encode<e4m3>(values[0] * 224)) / 224 == 2.0F);
  CHECK(decode(encode<e4m3>(values[3] * (448.0F / 240))) == 0.0F);
}

TEST_CASE("formats are named as in the table of plans", "[numeric]") {
  CHECK(name_of(DType::f32) == "fp32");
  CHECK(name_of(DType::e4m3) == "e4m3");
  CHECK(name_of(DType::i8) == "int8");
  CHECK(size_of(DType::e8m0) == 1);
}

}  // namespace fp8train
