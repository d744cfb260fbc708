// The scales of Smooth-SwiGLU against the definition in double precision; everything is exact,
// since scales are powers of two.

#include "ops/pointwise/smoothing.h"

#include <catch2/catch.hpp>

#include "numeric/scale.h"
#include "ops/pointwise/activation.h"
#include "ops/reference.h"

namespace fp8train::test {
namespace {

/// The power of two at or above 1 / largest, its exponent in -60 .. 60.
double wanted_scale(double largest) {
  if (!(largest > 0) || std::isinf(largest)) {
    return 1;
  }
  int exponent = 0;
  std::frexp(largest, &exponent);  // largest in [2^(exponent - 1), 2^exponent)
  return std::ldexp(1.0, -std::clamp(exponent - 1, -60, 60));
}

TEST_CASE("smoothing scales bring the largest up of a channel to [1, 2)", "[smoothing]") {
  for (const FloatType type : kFloatTypes) {
    for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{1, 1}, {3, 37}, {70, 300}}) {
      std::vector<float> values = random_values(rows * 2 * width, 1, 3.0F);
      for (int64_t i = 0; i < width; ++i) {  // channels of very different sizes
        const float gain = std::ldexp(1.0F, static_cast<int>(i % 23) - 11);
        for (int64_t row = 0; row < rows; ++row) {
          values[static_cast<size_t>(row * 2 * width + width + i)] *= i % 29 == 28 ? 0.0F : gain;
        }
      }
      Array gate_up(type.dtype, {rows, 2 * width}, values);
      Array scale(DType::f32, {width});
      ops::find_smoothing(cpu_stream(), gate_up, scale);
      for (int64_t i = 0; i < width; ++i) {
        double largest = 0;
        for (int64_t row = 0; row < rows; ++row) {
          largest = std::max(
              largest, std::abs(static_cast<double>(gate_up.get(row * 2 * width + width + i))));
        }
        CHECK(scale.get(i) == wanted_scale(largest));
      }
    }
  }
}

TEST_CASE("smoothing scales at the ends", "[smoothing]") {
  for (const float amax :
       {1.0F, 1.99F, 2.0F, 3.0F, 0.75F, 448.0F, 1e30F, kMaxF32, 1e-30F, 1e-40F}) {
    CHECK(smoothing_scale(amax) == wanted_scale(amax));
  }
  CHECK(smoothing_scale(0.0F) == 1.0F);
  CHECK(smoothing_scale(INFINITY) == 1.0F);
  CHECK(smoothing_scale(NAN) == 1.0F);
}

TEST_CASE("smoothed SwiGLU is SwiGLU times the scales", "[smoothing]") {
  constexpr int64_t kRows = 5;
  constexpr int64_t kWidth = 4100;  // more than one piece
  for (const FloatType type : kFloatTypes) {
    Array gate_up(type.dtype, {kRows, 2 * kWidth}, random_values(kRows * 2 * kWidth, 2, 3.0F));
    Array scale(DType::f32, {kWidth});
    ops::find_smoothing(cpu_stream(), gate_up, scale);
    Array plain(type.dtype, {kRows, kWidth});
    Array smooth(type.dtype, {kRows, kWidth});
    ops::swiglu_forward(cpu_stream(), gate_up, plain);
    ops::swiglu_forward(cpu_stream(), gate_up, smooth, {}, scale);
    int64_t different = 0;
    for (int64_t i = 0; i < smooth.count(); ++i) {
      const float wanted = plain.get(i) * scale.get(i % kWidth);
      // A product that fp16 holds as a subnormal number has been rounded at another bit.
      const bool subnormal = type.dtype == DType::f16 &&
                             (std::abs(plain.get(i)) < 0x1p-14F || std::abs(wanted) < 0x1p-14F);
      different += smooth.get(i) == wanted || subnormal ? 0 : 1;
    }
    CHECK(different == 0);
  }
}

TEST_CASE("columns are divided exactly", "[smoothing]") {
  constexpr int64_t kRows = 7;
  constexpr int64_t kWidth = 45;
  Array x(DType::f32, {kRows, kWidth}, random_values(kRows * kWidth, 3));
  const std::vector<float> before = random_values(kRows * kWidth, 4);
  std::vector<float> powers;
  for (int64_t i = 0; i < kWidth; ++i) {
    powers.push_back(std::ldexp(1.0F, static_cast<int>(i) - 20));
  }
  Array scale(DType::f32, {kWidth}, powers);
  Array quotient(DType::f32, {kRows, kWidth});
  Array sum(DType::f32, {kRows, kWidth}, before);
  ops::divide_columns(cpu_stream(), x, scale, quotient, false);
  ops::divide_columns(cpu_stream(), x, scale, sum, true);
  for (int64_t i = 0; i < x.count(); ++i) {
    const float wanted = x.get(i) / powers[static_cast<size_t>(i % kWidth)];
    CHECK(quotient.get(i) == wanted);
    CHECK(sum.get(i) == before[static_cast<size_t>(i)] + wanted);
  }
}

TEST_CASE("smoothing has the same bits at every level and thread count", "[smoothing]") {
  CHECK(same_everywhere([&](const ops::OpTable& table) {
    Array gate_up(DType::bf16, {60, 2 * 333}, random_values(60 * 666, 1, 4.0F));
    Array scale(DType::f32, {333});
    Array y(DType::f32, {60, 333}, random_values(60 * 333, 2));
    Array product(DType::bf16, {60, 333});
    Bits bits;
    table.find_smoothing(cpu_stream(), gate_up, scale);
    bits.add(scale);
    table.swiglu_forward(cpu_stream(), gate_up, product, {}, scale, false);
    bits.add(product);
    table.divide_columns(cpu_stream(), y, scale, y, true);
    bits.add(y);
    return bits;
  }));
}

TEST_CASE("smoothing refuses shapes and types that do not fit", "[smoothing]") {
  Array gate_up(DType::f32, {4, 10});
  Array wide(DType::f32, {10});
  Array narrow(DType::f32, {4});
  Array codes(DType::u8, {5});
  CHECK_THROWS_AS(ops::find_smoothing(cpu_stream(), gate_up, wide), InternalError);
  CHECK_THROWS_AS(ops::find_smoothing(cpu_stream(), gate_up, codes), InternalError);
  CHECK_THROWS_AS(ops::divide_columns(cpu_stream(), gate_up, narrow, gate_up, false),
                  InternalError);
  Array y(DType::f32, {4, 5});
  CHECK_THROWS_AS(ops::swiglu_forward(cpu_stream(), gate_up, y, {}, narrow), InternalError);
}

}  // namespace
}  // namespace fp8train::test
