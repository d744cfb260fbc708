#pragma once
// Problems of norms and their results in double precision, for the tests on the cpu and on cuda.

#include <utility>

#include "ops/norm/norm.h"
#include "ops/reference.h"

namespace fp8train::test {

inline constexpr float kNormEps = 1e-5F;

// fp32 arithmetic on rows of up to 300 standard normal values: a sum of n terms over 16 lanes is
// off by less than n / 16 + 4 roundings of 2^-24, and everything else adds a handful. 2^-17 of the
// magnitudes at hand (at most about 30) covers both with room; what the result's own type rounds
// comes on top.
inline constexpr double kNormArithmetic = 0x1p-17;
// A gradient of the weight sums 64 rows one after the other, then the chunks: up to 70 roundings at
// a running sum of about 30 give 2^-13 at worst, and a random walk of them about 2^-16.
inline constexpr double kNormSumOverRows = 0x1p-15;

struct NormProblem {
  int64_t rows, n;
  FloatType x, y;

  std::vector<float> x_values() const { return random_values(rows * n, 1); }
};

struct NormReference {
  std::vector<double> y, dx, weight_grad, bias_grad, mean, rstd;
};

/// Both norms: RMSNorm is LayerNorm with mean 0 and no bias.
inline NormReference norm_reference(const NormProblem& p, const std::vector<double>& x,
                                    const std::vector<double>& w, const std::vector<double>& b,
                                    const std::vector<double>& dy, bool layer) {
  const auto size = static_cast<size_t>(p.rows * p.n);
  const auto n = static_cast<size_t>(p.n);
  NormReference r{std::vector<double>(size),
                  std::vector<double>(size),
                  std::vector<double>(n),
                  std::vector<double>(n),
                  {},
                  {}};
  for (size_t row = 0; row < static_cast<size_t>(p.rows); ++row) {
    const double* xr = x.data() + row * n;
    const double* g = dy.data() + row * n;
    double mean = 0;
    for (size_t i = 0; layer && i < n; ++i) {
      mean += xr[i] / static_cast<double>(n);
    }
    double square = 0;
    for (size_t i = 0; i < n; ++i) {
      square += (xr[i] - mean) * (xr[i] - mean) / static_cast<double>(n);
    }
    const double rstd = 1 / std::sqrt(square + static_cast<double>(kNormEps));
    r.mean.push_back(mean);
    r.rstd.push_back(rstd);
    double gradient_mean = 0;
    double projection = 0;
    for (size_t i = 0; i < n; ++i) {
      const double xhat = (xr[i] - mean) * rstd;
      r.y[row * n + i] = xhat * w[i] + (layer ? b[i] : 0);
      r.weight_grad[i] += g[i] * xhat;
      r.bias_grad[i] += g[i];
      gradient_mean += layer ? g[i] * w[i] / static_cast<double>(n) : 0;
      projection += g[i] * w[i] * xhat / static_cast<double>(n);
    }
    for (size_t i = 0; i < n; ++i) {
      const double xhat = (xr[i] - mean) * rstd;
      r.dx[row * n + i] = rstd * (g[i] * w[i] - gradient_mean - xhat * projection);
    }
  }
  return r;
}

/// All operands of one problem; gradients start at 0.5 where they are added to.
struct NormOperands {
  explicit NormOperands(const NormProblem& p)
      : x(p.x.dtype, {p.rows, p.n}, p.x_values()),
        weight(DType::f32, {p.n}, random_values(p.n, 2)),
        bias(DType::f32, {p.n}, random_values(p.n, 3)),
        dy(p.y.dtype, {p.rows, p.n}, random_values(p.rows * p.n, 4)),
        y(p.y.dtype, {p.rows, p.n}),
        dx(p.x.dtype, {p.rows, p.n}, std::vector<float>(static_cast<size_t>(p.rows * p.n), 0.5F)),
        mean(DType::f32, {p.rows}),
        rstd(DType::f32, {p.rows}),
        weight_grad(DType::f32, {p.n}, std::vector<float>(static_cast<size_t>(p.n), 0.5F)),
        bias_grad(weight_grad),
        scratch(DType::f32, {2 * ops::norm_partial_rows(p.rows) * p.n}) {}

  /// LayerNorm where `layer`, else RMSNorm.
  ops::NormForward forward(bool layer) {
    return {.x = x,
            .weight = weight,
            .bias = layer ? ConstView(bias) : ConstView(),
            .eps = kNormEps,
            .y = y,
            .mean = layer ? View(mean) : View(),
            .rstd = rstd};
  }
  ops::NormBackward backward(bool layer) {
    return {.dy = dy,
            .x = x,
            .weight = weight,
            .mean = layer ? ConstView(mean) : ConstView(),
            .rstd = rstd,
            .dx = dx,
            .weight_grad = weight_grad,
            .bias_grad = layer ? View(bias_grad) : View(),
            .scratch = scratch};
  }

  Array x, weight, bias, dy, y, dx, mean, rstd, weight_grad, bias_grad, scratch;
};

inline std::vector<double> plus_half(std::vector<double> values) {
  for (double& value : values) {
    value += 0.5;
  }
  return values;
}

}  // namespace fp8train::test
