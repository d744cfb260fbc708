// Activations against their definitions in double precision, by the bounds that
// ops/support/fast_math.cuh states: every bf16 number, and fp32 numbers over the whole range. On a
// GPU this compares its own exponentials and reciprocals. In the host form, where those are
// correctly rounded, it holds the formulas, their ends (infinities, overflowing exponentials,
// results that are flushed to zero), and the kernel.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "numeric/bits.h"
#include "ops/cuda/cuda_test_support.h"
#include "ops/pointwise/activation.h"

namespace fp8train::test {
namespace {

struct Bound {
  double relative, relative_by_x, absolute;
};
constexpr Bound kSilu = {0x1p-20, 0x1p-23, 0x1p-119};
constexpr Bound kGelu = {0x1p-15, 0, 0x1p-122};
constexpr Bound kGeluNear = {0x1p-20, 0, 0x1p-122};  // from -1 on
constexpr Bound kDerivative = {0, 0, 0x1p-18};

double sigmoid(double x) {
  return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
}
double silu(double x) {
  return x == -INFINITY ? 0 : x * sigmoid(x);
}
double silu_derivative(double x) {
  return std::isinf(x) ? (x > 0 ? 1 : 0) : sigmoid(x) * (1 + x * sigmoid(-x));
}
double gelu_argument(double x) {
  return 2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
}
double gelu(double x) {
  return x == -INFINITY ? 0 : x * sigmoid(gelu_argument(x));
}
double gelu_derivative(double x) {
  if (std::isinf(x)) {
    return x > 0 ? 1 : 0;
  }
  const double u = gelu_argument(x);
  const double slope = 2 * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
  return sigmoid(u) + x * sigmoid(u) * sigmoid(-u) * slope;
}

/// Every bf16 number, or as many fp32 numbers, evenly over all bit patterns.
Array all_inputs(DType type) {
  Array x(type, {256, 256});
  for (uint32_t i = 0; i < 65536; ++i) {
    x.set(i, float_of(type == DType::bf16 ? i << 16 : i * 65537U));
  }
  return x;
}

/// The largest error as a share of the bound and of rounding to the type: at most 1 passes.
template <typename Reference, typename BoundOf>
double worst_error(const Array& x, const Array& got, Reference reference, BoundOf bound_of) {
  const double rounding = x.dtype() == DType::bf16 ? 0x1p-8 : 0x1p-24;
  double worst = 0;
  for (int64_t i = 0; i < x.count(); ++i) {
    const double in = x.get(i);
    const double want = std::isnan(in) ? NAN : reference(in);
    const double value = got.get(i);
    if (value == want || (std::isnan(value) && std::isnan(want))) {
      continue;
    }
    const Bound bound = bound_of(in);
    const double magnitude = std::min(std::abs(in), 0x1p128);  // infinity times 0 is no bound
    const double relative = rounding + bound.relative + magnitude * bound.relative_by_x;
    // 2^-134: half the distance of bf16's subnormal numbers.
    const double allowed = relative * std::abs(want) + bound.absolute + 0x1p-134;
    const double error = std::abs(value - want) / allowed;
    if (!(error <= worst)) {
      worst = std::isnan(error) ? INFINITY : error;
    }
  }
  return worst;
}

Array ones(const Array& x) {
  return Array(x.dtype(), {256, 256}, std::vector<float>(65536, 1.0F));
}

/// [rows, 2 width] of two matrices.
Array in_pairs(const Array& left, const Array& right) {
  Array pairs(left.dtype(), {256, 512});
  for (int64_t i = 0; i < left.count(); ++i) {
    pairs.set(i / 256 * 512 + i % 256, left.get(i));
    pairs.set(i / 256 * 512 + 256 + i % 256, right.get(i));
  }
  return pairs;
}
Array half_of(const Array& pairs, int64_t half) {
  Array part(pairs.dtype(), {256, 256});
  for (int64_t i = 0; i < part.count(); ++i) {
    part.set(i, pairs.get(i / 256 * 512 + half * 256 + i % 256));
  }
  return part;
}

TEST_CASE("SiLU and its derivative keep the bounds of fast_math.cuh", "[cuda][activation]") {
  for (const DType type : {DType::bf16, DType::f32}) {
    INFO(name_of(type));
    const Array x = all_inputs(type);
    const Array gate_up = in_pairs(x, ones(x));
    const Array y = on_cuda([&](Side& side) {
      const View to = side.space(type, {256, 256});
      ops::swiglu_forward(side.stream(), side.put(gate_up), to);
      return side.get(to);
    });
    CHECK(worst_error(x, y, silu, [](double /*in*/) { return kSilu; }) <= 1);
    const Array gradient = on_cuda([&](Side& side) {
      const View to = side.space(type, {256, 512});
      ops::swiglu_backward(side.stream(), side.put(ones(x)), side.put(gate_up), to);
      return side.get(to);
    });
    CHECK(worst_error(x, half_of(gradient, 0), silu_derivative,
                      [](double /*in*/) { return kDerivative; }) <= 1);
    CHECK(same_values(half_of(gradient, 1), y));  // d_up is silu(gate), from the same exponential
  }
}

TEST_CASE("GELU and its derivative keep the bounds of fast_math.cuh", "[cuda][activation]") {
  for (const DType type : {DType::bf16, DType::f32}) {
    INFO(name_of(type));
    const Array x = all_inputs(type);
    const Array y = on_cuda([&](Side& side) {
      const View to = side.space(type, {256, 256});
      ops::gelu_forward(side.stream(), side.put(x), to);
      return side.get(to);
    });
    CHECK(worst_error(x, y, gelu, [](double in) { return in >= -1 ? kGeluNear : kGelu; }) <= 1);
    const Array dx = on_cuda([&](Side& side) {
      const View to = side.space(type, {256, 256});
      ops::gelu_backward(side.stream(), side.put(ones(x)), side.put(x), to);
      return side.get(to);
    });
    CHECK(worst_error(x, dx, gelu_derivative, [](double /*in*/) { return kDerivative; }) <= 1);
  }
}

TEST_CASE("activations at the ends of their range", "[cuda][activation]") {
  const float ends[] = {-INFINITY, -3e38F, -1e4F, -104.0F, -88.5F, -0.0F, 0.0F, 1e-40F};
  Array x(DType::f32, {1, 8}, {ends, ends + 8});
  const Array y = on_cuda([&](Side& side) {
    const View to = side.space(DType::f32, {1, 8});
    ops::gelu_forward(side.stream(), side.put(x), to);
    return side.get(to);
  });
  Array gate_up(DType::f32, {1, 16});
  for (int64_t i = 0; i < 8; ++i) {
    gate_up.set(i, ends[i]);
    gate_up.set(8 + i, 1.0F);
  }
  const Array product = on_cuda([&](Side& side) {
    const View to = side.space(DType::f32, {1, 8});
    ops::swiglu_forward(side.stream(), side.put(gate_up), to);
    return side.get(to);
  });
  for (int64_t i = 0; i < 7; ++i) {  // flushed to zero with the sign of x
    CHECK(bits_of(y.get(i)) == (i < 6 ? 0x80000000U : 0U));
    CHECK(bits_of(product.get(i)) == (i < 6 ? 0x80000000U : 0U));
  }
  CHECK(product.get(7) == 0.5e-40F);  // a subnormal number goes through
}

}  // namespace
}  // namespace fp8train::test
