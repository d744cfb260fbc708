// Errors of numeric/math.h in units in the last place, against double libm. Run with -s to see the
// measured figures.

#include "numeric/math.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "numeric/isa_tables.h"
#include "numeric/math_levels.h"

namespace fp8train {

FP8TRAIN_ISA_TABLES(MathKernels, math_kernels)

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Distance in units of the fp32 spacing at `exact`.
double ulp_error(float got, double exact) {
  const auto rounded = static_cast<float>(exact);
  if (rounded == got) {
    const int exponent = exact == 0.0 ? -126 : std::max(std::ilogb(exact), -126);
    return std::isinf(got)
               ? 0.0
               : std::fabs(static_cast<double>(got) - exact) / std::ldexp(1.0, exponent - 23);
  }
  if (std::isinf(rounded) || std::isinf(got) || std::isnan(got)) {
    return 1e9;
  }
  const int exponent = exact == 0.0 ? -126 : std::max(std::ilogb(exact), -126);
  return std::fabs(static_cast<double>(got) - exact) / std::ldexp(1.0, exponent - 23);
}

/// Every `step`-th fp32 pattern between two positive numbers, and its negative unless
/// `positive_only`.
std::vector<float> sweep(float low, float high, uint32_t step, bool positive_only = false) {
  std::vector<float> inputs;
  for (uint64_t bits = bits_of(low); bits <= bits_of(high); bits += step) {
    inputs.push_back(float_of(static_cast<uint32_t>(bits)));
    if (!positive_only) {
      inputs.push_back(-inputs.back());
    }
  }
  return inputs;
}

template <typename Function, typename Exact>
double max_ulp(const std::vector<float>& inputs, Function function, Exact exact) {
  double worst = 0;
  for (const float x : inputs) {
    worst = std::max(worst, ulp_error(function(x), exact(static_cast<double>(x))));
  }
  return worst;
}

template <typename Function, typename Exact>
double max_absolute(const std::vector<float>& inputs, Function function, Exact exact) {
  double worst = 0;
  for (const float x : inputs) {
    worst = std::max(worst,
                     std::fabs(static_cast<double>(function(x)) - exact(static_cast<double>(x))));
  }
  return worst;
}

double exact_sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}
double exact_gelu(double x) {
  // x * sigmoid(2 u) is 0.5 x (1 + tanh(u)) without its cancellation.
  return x * exact_sigmoid(2.0 * std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x));
}
double exact_gelu_derivative(double x) {
  const double slope = 2.0 * std::sqrt(2.0 / M_PI);
  const double s = exact_sigmoid(slope * (x + 0.044715 * x * x * x));
  return s + x * s * (1.0 - s) * slope * (1.0 + 3.0 * 0.044715 * x * x);
}

}  // namespace

TEST_CASE("exp", "[numeric]") {
  const std::vector<float> inputs = sweep(1e-10F, 104.5F, 331);
  const double worst = max_ulp(
      inputs, [](float x) { return exp_f32(x); }, [](double x) { return std::exp(x); });
  CHECK(worst < 1.0);
  CHECK(exp_f32(0.0F) == 1.0F);
  CHECK(exp_f32(-0.0F) == 1.0F);
  CHECK(bits_of(exp_f32(-kInfinity)) == 0U);
  CHECK(exp_f32(-1e30F) == 0.0F);
  CHECK(exp_f32(88.72283F) < kInfinity);
  CHECK(exp_f32(88.72284F) == kInfinity);
  CHECK(exp_f32(kInfinity) == kInfinity);
  CHECK(exp_f32(1e30F) == kInfinity);
  CHECK(std::isnan(exp_f32(kNan)));
  CHECK(std::isnan(exp_f32(-kNan)));
  CHECK(exp_f32(-100.0F) == Approx(3.783506e-44F).margin(1e-45));
}

TEST_CASE("log", "[numeric]") {
  const std::vector<float> inputs = sweep(1e-45F, std::numeric_limits<float>::max(), 601, true);
  const double worst = max_ulp(
      inputs, [](float x) { return log_f32(x); }, [](double x) { return std::log(x); });
  CHECK(worst < 1.0);
  const std::vector<float> near_one = sweep(0.5F, 2.0F, 7, true);
  const double worst_near_one = max_ulp(
      near_one, [](float x) { return log_f32(x); }, [](double x) { return std::log(x); });
  CHECK(worst_near_one < 1.0);
  CHECK(bits_of(log_f32(1.0F)) == 0U);
  CHECK(log_f32(0.0F) == -kInfinity);
  CHECK(log_f32(-0.0F) == -kInfinity);
  CHECK(log_f32(kInfinity) == kInfinity);
  CHECK(std::isnan(log_f32(-1.0F)));
  CHECK(std::isnan(log_f32(-1e-45F)));
  CHECK(std::isnan(log_f32(-kInfinity)));
  CHECK(std::isnan(log_f32(kNan)));
  CHECK(std::isnan(log_f32(-kNan)));
}

TEST_CASE("exp2", "[numeric]") {
  const double worst = max_ulp(
      sweep(1e-10F, 150.0F, 331), [](float x) { return exp2_f32(x); },
      [](double x) { return std::exp2(x); });
  CHECK(worst < 1.0);
  for (int n = -149; n < 128; ++n) {
    REQUIRE(exp2_f32(static_cast<float>(n)) == std::ldexp(1.0F, n));
  }
  CHECK(exp2_f32(128.0F) == kInfinity);
  CHECK(exp2_f32(kInfinity) == kInfinity);
  CHECK(bits_of(exp2_f32(-kInfinity)) == 0U);
  CHECK(exp2_f32(-1e30F) == 0.0F);
  CHECK(std::isnan(exp2_f32(kNan)));
}

TEST_CASE("log2", "[numeric]") {
  const auto function = [](float x) { return log2_f32(x); };
  const auto exact = [](double x) { return std::log2(x); };
  CHECK(max_ulp(sweep(1e-45F, std::numeric_limits<float>::max(), 601, true), function, exact) <
        1.2);
  CHECK(max_ulp(sweep(0.5F, 2.0F, 7, true), function, exact) < 1.2);
  for (int n = -149; n < 128; ++n) {
    REQUIRE(log2_f32(std::ldexp(1.0F, n)) == static_cast<float>(n));
  }
  CHECK(log2_f32(0.0F) == -kInfinity);
  CHECK(log2_f32(kInfinity) == kInfinity);
  CHECK(std::isnan(log2_f32(-1.0F)));
  CHECK(std::isnan(log2_f32(kNan)));
}

TEST_CASE("sigmoid", "[numeric]") {
  const std::vector<float> inputs = sweep(1e-10F, 110.0F, 331);
  const double worst = max_ulp(
      inputs, [](float x) { return sigmoid_f32(x); }, exact_sigmoid);
  CHECK(worst < 2.5);
  CHECK(sigmoid_f32(0.0F) == 0.5F);
  CHECK(sigmoid_f32(kInfinity) == 1.0F);
  CHECK(sigmoid_f32(-kInfinity) == 0.0F);
  CHECK(std::isnan(sigmoid_f32(kNan)));
}

TEST_CASE("SiLU and its derivative", "[numeric]") {
  const std::vector<float> inputs = sweep(1e-10F, 110.0F, 331);
  const auto exact = [](double x) { return x * exact_sigmoid(x); };
  const auto exact_derivative = [](double x) {
    return exact_sigmoid(x) * (1.0 + x * exact_sigmoid(-x));
  };
  const double worst = max_ulp(
      sweep(1e-10F, 80.0F, 331), [](float x) { return silu(x); }, exact);
  CHECK(worst < 3.2);
  const double worst_derivative = max_absolute(
      inputs, [](float x) { return silu_derivative(x); }, exact_derivative);
  CHECK(worst_derivative < 2.5e-7);
  CHECK(bits_of(silu(-kInfinity)) == 0x80000000U);
  CHECK(silu(kInfinity) == kInfinity);
  CHECK(silu(1e30F) == 1e30F);
  CHECK(silu_derivative(0.0F) == 0.5F);
  CHECK(silu_derivative(kInfinity) == 1.0F);
  CHECK(silu_derivative(-kInfinity) == 0.0F);
  CHECK(std::isnan(silu(kNan)));
  CHECK(std::isnan(silu_derivative(kNan)));
}

TEST_CASE("tanh GELU and its derivative", "[numeric]") {
  const std::vector<float> inputs = sweep(1e-10F, 40.0F, 331);
  const double worst = max_ulp(
      sweep(1e-10F, 3.0F, 331), [](float x) { return gelu_tanh(x); }, exact_gelu);
  CHECK(worst < 16.0);
  const auto relative_above = [](float x) { return x > 0.0F ? gelu_tanh(x) : 0.0F; };
  const auto exact_above = [](double x) { return x > 0.0 ? exact_gelu(x) : 0.0; };
  const double worst_above = max_ulp(inputs, relative_above, exact_above);
  CHECK(worst_above < 3.0);
  const auto below = sweep(1e-10F, 40.0F, 331);
  const auto negative = [](float x) { return x < 0.0F ? gelu_tanh(x) : 0.0F; };
  const double worst_negative =
      max_absolute(below, negative, [](double x) { return x < 0.0 ? exact_gelu(x) : 0.0; });
  CHECK(worst_negative < 1e-7);
  const double worst_derivative = max_absolute(
      inputs, [](float x) { return gelu_tanh_derivative(x); }, exact_gelu_derivative);
  CHECK(worst_derivative < 5e-7);
  CHECK(gelu_tanh(0.0F) == 0.0F);
  CHECK(gelu_tanh(kInfinity) == kInfinity);
  CHECK(gelu_tanh(1e30F) == 1e30F);
  CHECK(bits_of(gelu_tanh(-kInfinity)) == 0x80000000U);
  CHECK(gelu_tanh_derivative(0.0F) == 0.5F);
  CHECK(gelu_tanh_derivative(kInfinity) == 1.0F);
  CHECK(gelu_tanh_derivative(-kInfinity) == 0.0F);
  CHECK(std::isnan(gelu_tanh(kNan)));
  CHECK(std::isnan(gelu_tanh_derivative(kNan)));
}

TEST_CASE("the elementary functions have the same bits at every CPU level", "[numeric]") {
  std::vector<float> inputs;
  for (uint64_t bits = 0; bits < (1ULL << 32); bits += 40009) {
    inputs.push_back(float_of(static_cast<uint32_t>(bits)));
  }
  std::vector<float> outputs(inputs.size());
  using Scalar = float (*)(float);
  const Scalar scalar[MathKernels::kCount] = {[](float x) { return exp_f32(x); },
                                              [](float x) { return log_f32(x); },
                                              [](float x) { return sigmoid_f32(x); },
                                              [](float x) { return silu(x); },
                                              [](float x) { return silu_derivative(x); },
                                              [](float x) { return gelu_tanh(x); },
                                              [](float x) { return gelu_tanh_derivative(x); },
                                              [](float x) { return exp2_f32(x); },
                                              [](float x) { return log2_f32(x); }};
  for (const CpuIsa isa : cpu_isas()) {
    const MathKernels* kernels = math_kernels_tables().at(isa);
    if (kernels == nullptr || isa > cpu_isa()) {
      continue;
    }
    for (int f = 0; f < MathKernels::kCount; ++f) {
      kernels->function[f](inputs.data(), outputs.data(), inputs.size());
      size_t different = 0;
      for (size_t i = 0; i < inputs.size(); ++i) {
        const float expected = scalar[f](inputs[i]);
        const bool same = bits_of(expected) == bits_of(outputs[i]) ||
                          (std::isnan(expected) && std::isnan(outputs[i]));
        different += same ? 0 : 1;
      }
      CAPTURE(name_of(isa), f);
      CHECK(different == 0);
    }
  }
}

}  // namespace fp8train
