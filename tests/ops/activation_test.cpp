#include "ops/activation.h"

#include <catch2/catch.hpp>

#include "ops/reference.h"

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
      table.swiglu_forward(stream, gate_up, y, {}, {});
      bits.add(y);
      table.swiglu_backward(stream, dy, gate_up, gradient, {});
      bits.add(gradient);
      table.gelu_forward(stream, gate_up, gradient, {});
      bits.add(gradient);
      table.gelu_backward(stream, gate_up, gate_up, gradient, {});
      bits.add(gradient);
      return bits;
    }));
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
