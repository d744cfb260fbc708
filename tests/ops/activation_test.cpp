#include "ops/pointwise/activation.h"

#include <catch2/catch.hpp>

#include "numeric/math.h"
#include "ops/reference.h"
#include "ops/stored_reference.h"

namespace fp8train::test {
namespace {

// numeric/math.h holds a few units in the last place; products of values up to about 30.
constexpr double kArithmetic = 0x1p-18;

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}
double silu(double x) {
  return x * sigmoid(x);
}
double silu_slope(double x) {
  return (silu(x + 1e-5) - silu(x - 1e-5)) / 2e-5;
}
double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
double gelu_slope(double x) {
  return (gelu(x + 1e-5) - gelu(x - 1e-5)) / 2e-5;
}

TEST_CASE("SwiGLU and its gradient", "[activation]") {
  const Stream stream = cpu_stream();
  for (const FloatType type : kFloatTypes) {
    for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{1, 1}, {3, 37}, {40, 520}}) {
      Array gate_up(type.dtype, {rows, 2 * width}, random_values(rows * 2 * width, 1, 3.0F));
      Array dy(type.dtype, {rows, width}, random_values(rows * width, 2));
      Array y(type.dtype, {rows, width});
      Array gradient(type.dtype, {rows, 2 * width});
      ops::swiglu_forward(stream, gate_up, y);
      ops::swiglu_backward(stream, dy, gate_up, gradient);
      std::vector<double> want_y;
      std::vector<double> want_gradient(static_cast<size_t>(rows * 2 * width));
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t i = 0; i < width; ++i) {
          const double gate = gate_up.get(row * 2 * width + i);
          const double up = gate_up.get(row * 2 * width + width + i);
          const double d = dy.get(row * width + i);
          want_y.push_back(silu(gate) * up);
          want_gradient[static_cast<size_t>(row * 2 * width + i)] = d * up * silu_slope(gate);
          want_gradient[static_cast<size_t>(row * 2 * width + width + i)] = d * silu(gate);
        }
      }
      CHECK(worst_error(y, want_y, type.rounding, kArithmetic) <= 1);
      CHECK(worst_error(gradient, want_gradient, type.rounding, kArithmetic) <= 1);
    }
  }
}

TEST_CASE("GELU and its gradient", "[activation]") {
  const Stream stream = cpu_stream();
  for (const FloatType type : kFloatTypes) {
    for (const int64_t count : {1, 37, 20001}) {
      Array x(type.dtype, {count}, random_values(count, 1, 3.0F));
      Array dy(type.dtype, {count}, random_values(count, 2));
      Array y(type.dtype, {count});
      Array dx(type.dtype, {count});
      ops::gelu_forward(stream, x, y);
      ops::gelu_backward(stream, dy, x, dx);
      std::vector<double> want_y;
      std::vector<double> want_dx;
      for (int64_t i = 0; i < count; ++i) {
        want_y.push_back(gelu(x.get(i)));
        want_dx.push_back(static_cast<double>(dy.get(i)) * gelu_slope(x.get(i)));
      }
      CHECK(worst_error(y, want_y, type.rounding, kArithmetic) <= 1);
      CHECK(worst_error(dx, want_dx, type.rounding, kArithmetic) <= 1);
    }
  }
}

TEST_CASE("activations have the same bits at every level and thread count", "[activation]") {
  for (const FloatType type : kFloatTypes) {
    CHECK(same_everywhere([&](const ops::OpTable& table) {
      const Stream stream = cpu_stream();
      Array gate_up(type.dtype, {60, 2 * 333}, random_values(60 * 666, 1, 4.0F));
      Array dy(type.dtype, {60, 333}, random_values(60 * 333, 2));
      Array y(type.dtype, {60, 333});
      Array gradient(type.dtype, {60, 2 * 333});
      Bits bits;
      for (const bool silu_in_codes : {false, true}) {
        table.swiglu_forward(stream, gate_up, y, {}, {}, silu_in_codes);
        bits.add(y);
        table.swiglu_backward(stream, dy, gate_up, gradient, {}, silu_in_codes);
        bits.add(gradient);
      }
      table.gelu_forward(stream, gate_up, gradient, {});
      bits.add(gradient);
      table.gelu_backward(stream, gate_up, gate_up, gradient, {});
      bits.add(gradient);
      return bits;
    }));
  }
}

/// COAT's SiLU: in groups of 16 the scale is bf16(amax / 448), and codes are read times that.
/// `amax` 0: the scale is 1.
float read_of_code(float value, float amax) {
  const float quotient = amax / 448.0F;
  const float scale = amax == 0.0F ? 1.0F : decode(encode<bf16>(quotient));
  return decode_bits(DType::e4m3, nearest_code(DType::e4m3, value / scale)) * scale;
}

TEST_CASE("a SwiGLU reads the codes of its SiLU where that is wanted", "[activation]") {
  constexpr int64_t kRows = 5;
  for (const int64_t width : {1, 16, 40, 4096 + 24}) {
    std::vector<float> values = random_values(kRows * 2 * width, 3, 2.0F);
    std::fill_n(values.begin(), std::min<int64_t>(width, 16), -200.0F);  // silu is -0
    Array gate_up(DType::f32, {kRows, 2 * width}, values);
    Array dy(DType::f32, {kRows, width}, random_values(kRows * width, 4));
    Array smoothing(DType::f32, {width}, std::vector<float>(static_cast<size_t>(width), 0.25F));
    Array plain(DType::f32, {kRows, width}), y(DType::f32, {kRows, width});
    Array smooth(DType::f32, {kRows, width});
    Array plain_gradient(DType::f32, {kRows, 2 * width}), gradient(DType::f32, {kRows, 2 * width});
    ops::swiglu_forward(cpu_stream(), gate_up, y, {}, {}, true);
    ops::swiglu_forward(cpu_stream(), gate_up, smooth, {}, smoothing, true);
    ops::swiglu_backward(cpu_stream(), dy, gate_up, plain_gradient);
    ops::swiglu_backward(cpu_stream(), dy, gate_up, gradient, {}, true);
    int64_t wrong = 0, changed = 0;
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t begin = 0; begin < width; begin += 16) {
        const int64_t end = std::min(width, begin + 16);
        float amax = 0.0F;
        const auto silu_at = [&](int64_t i) {
          return fp8train::silu(gate_up.get(row * 2 * width + i));
        };
        for (int64_t i = begin; i < end; ++i) {
          amax = std::max(amax, std::fabs(silu_at(i)));
        }
        for (int64_t i = begin; i < end; ++i) {
          const float activated = read_of_code(silu_at(i), amax);
          const int64_t at = row * width + i;
          const float wanted = activated * gate_up.get(row * 2 * width + width + i);
          wrong += y.get(at) != wanted ? 1 : 0;
          wrong += smooth.get(at) != wanted * 0.25F ? 1 : 0;
          changed += activated != silu_at(i) ? 1 : 0;
          const int64_t gate = row * 2 * width + i;
          wrong += gradient.get(gate) != plain_gradient.get(gate) ? 1 : 0;
          wrong += gradient.get(gate + width) != dy.get(at) * activated ? 1 : 0;
        }
      }
    }
    INFO("width " << width);
    CHECK(wrong == 0);
    CHECK((width <= 16 || changed > kRows * width / 2));
  }
}

TEST_CASE("activations refuse shapes and types that do not fit", "[activation]") {
  Array gate_up(DType::f32, {4, 10});
  Array narrow(DType::f32, {4, 4});
  Array other(DType::bf16, {4, 5});
  CHECK_THROWS_AS(ops::swiglu_forward(cpu_stream(), gate_up, narrow), InternalError);
  CHECK_THROWS_AS(ops::swiglu_forward(cpu_stream(), gate_up, other), InternalError);
  CHECK_THROWS_AS(ops::gelu_forward(cpu_stream(), gate_up, narrow), InternalError);
}

}  // namespace
}  // namespace fp8train::test
