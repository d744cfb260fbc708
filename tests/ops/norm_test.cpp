#include "ops/norm.h"

#include <catch2/catch.hpp>

#include "ops/attention.h"
#include "ops/reference.h"

namespace fp8train::test {
namespace {

constexpr float kEps = 1e-5F;

// fp32 arithmetic on rows of up to 300 standard normal values: a sum of n terms over 16 lanes is
// off by less than n / 16 + 4 roundings of 2^-24, and everything else adds a handful. 2^-17 of the
// magnitudes at hand (at most about 30) covers both with room; what the result's own type rounds
// comes on top.
constexpr double kArithmetic = 0x1p-17;
// A gradient of the weight sums 64 rows one after the other, then the chunks: up to 70 roundings at
// a running sum of about 30 give 2^-13 at worst, and a random walk of them about 2^-16.
constexpr double kSumOverRows = 0x1p-15;

struct Problem {
  int64_t rows, n;
  FloatType x, y;

  std::vector<float> x_values() const { return random_values(rows * n, 1); }
};

std::vector<Problem> problems() {
  std::vector<Problem> all;
  for (const FloatType x : kFloatTypes) {
    for (const FloatType y : kFloatTypes) {
      for (const auto& [rows, n] : {std::pair{1, 8}, {5, 37}, {130, 300}}) {
        all.push_back({rows, n, x, y});
      }
    }
  }
  return all;
}

struct Reference {
  std::vector<double> y, dx, weight_grad, bias_grad, mean, rstd;
};

/// Both norms: RMSNorm is LayerNorm with mean 0 and no bias.
Reference reference(const Problem& p, const std::vector<double>& x, const std::vector<double>& w,
                    const std::vector<double>& b, const std::vector<double>& dy, bool layer) {
  const auto size = static_cast<size_t>(p.rows * p.n);
  const auto n = static_cast<size_t>(p.n);
  Reference r{std::vector<double>(size),
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
    const double rstd = 1 / std::sqrt(square + static_cast<double>(kEps));
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
struct Operands {
  explicit Operands(const Problem& p)
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
        scratch(DType::f32, {2 * ((p.rows + 63) / 64) * p.n}) {}

  Array x, weight, bias, dy, y, dx, mean, rstd, weight_grad, bias_grad, scratch;
};

std::vector<double> plus_half(std::vector<double> values) {
  for (double& value : values) {
    value += 0.5;
  }
  return values;
}

TEST_CASE("RMSNorm and LayerNorm match double precision", "[norm]") {
  const Stream stream = cpu_stream();
  for (const Problem& p : problems()) {
    for (const bool layer : {false, true}) {
      for (const bool accumulate : {false, true}) {
        Operands o(p);
        if (layer) {
          ops::layer_norm_forward(stream, o.x, o.weight, o.bias, kEps, o.y, o.mean, o.rstd);
          ops::layer_norm_backward(stream, o.dy, o.x, o.weight, o.mean, o.rstd, o.dx, accumulate,
                                   o.weight_grad, o.bias_grad, o.scratch);
        } else {
          ops::rms_norm_forward(stream, o.x, o.weight, kEps, o.y, o.rstd);
          ops::rms_norm_backward(stream, o.dy, o.x, o.weight, o.rstd, o.dx, accumulate,
                                 o.weight_grad, o.scratch);
        }
        const Reference want =
            reference(p, doubles(o.x), doubles(o.weight), doubles(o.bias), doubles(o.dy), layer);
        INFO("rows " << p.rows << " n " << p.n << " layer " << layer << " x " << name_of(p.x.dtype)
                     << " y " << name_of(p.y.dtype));
        CHECK(worst_error(o.y, want.y, p.y.rounding, kArithmetic) <= 1);
        CHECK(worst_error(o.rstd, want.rstd, 0x1p-20, 0) <= 1);
        CHECK(worst_error(o.dx, accumulate ? plus_half(want.dx) : want.dx, p.x.rounding,
                          kArithmetic) <= 1);
        CHECK(worst_error(o.weight_grad, plus_half(want.weight_grad), 0, kSumOverRows) <= 1);
        if (layer) {
          CHECK(worst_error(o.mean, want.mean, 0, kArithmetic) <= 1);
          CHECK(worst_error(o.bias_grad, plus_half(want.bias_grad), 0, kSumOverRows) <= 1);
        }
      }
    }
  }
}

TEST_CASE("the norms' gradients are those of finite differences", "[norm]") {
  // The reference's own gradient, checked against central differences of its forward pass.
  const Problem p = {3, 11, kFloatTypes[0], kFloatTypes[0]};
  Operands o(p);
  const std::vector<double> w = doubles(o.weight);
  const std::vector<double> b = doubles(o.bias);
  const std::vector<double> dy = doubles(o.dy);
  for (const bool layer : {false, true}) {
    std::vector<double> x = doubles(o.x);
    const Reference at = reference(p, x, w, b, dy, layer);
    const auto loss = [&] {
      const Reference r = reference(p, x, w, b, dy, layer);
      double sum = 0;
      for (size_t i = 0; i < dy.size(); ++i) {
        sum += r.y[i] * dy[i];
      }
      return sum;
    };
    for (size_t i = 0; i < x.size(); ++i) {
      const double kept = x[i];
      x[i] = kept + 1e-5;
      const double above = loss();
      x[i] = kept - 1e-5;
      const double below = loss();
      x[i] = kept;
      CHECK(at.dx[i] == Approx((above - below) / 2e-5).margin(1e-6));
    }
  }
}

TEST_CASE("norms have the same bits at every level and thread count", "[norm]") {
  for (const FloatType type : kFloatTypes) {
    const Problem p = {150, 333, type, type};
    CHECK(same_everywhere([&](const ops::OpTable& table) {
      const Stream stream = cpu_stream();
      Operands o(p);
      Bits bits;
      table.rms_norm_forward(stream, o.x, o.weight, kEps, o.y, o.rstd, {});
      bits.add(o.y);
      table.rms_norm_backward(stream, o.dy, o.x, o.weight, o.rstd, o.dx, true, o.weight_grad,
                              o.scratch);
      bits.add(o.dx);
      table.layer_norm_forward(stream, o.x, o.weight, o.bias, kEps, o.y, o.mean, o.rstd, {});
      bits.add(o.y);
      table.layer_norm_backward(stream, o.dy, o.x, o.weight, o.mean, o.rstd, o.dx, false,
                                o.weight_grad, o.bias_grad, o.scratch);
      for (const Array* array : {&o.dx, &o.mean, &o.rstd, &o.weight_grad, &o.bias_grad}) {
        bits.add(*array);
      }
      return bits;
    }));
  }
}

TEST_CASE("the norm of heads is RMSNorm on slices of wider rows", "[norm]") {
  const int64_t rows = 70;
  const int64_t heads = 3;
  const int64_t dim = 24;
  const int64_t stride = 100;
  const Stream stream = cpu_stream();
  for (const FloatType type : kFloatTypes) {
    const Problem p = {rows * heads, dim, type, type};
    Operands o(p);
    Array wide(type.dtype, {rows, stride}, std::vector<float>(rows * stride, 7.0F));
    Array wide_gradient = wide;
    for (int64_t i = 0; i < p.rows * dim; ++i) {
      const int64_t at = i / (heads * dim) * stride + 5 + i % (heads * dim);
      wide.set(at, o.x.get(i));
      wide_gradient.set(at, o.dy.get(i));
    }
    const auto slice = [&](Array& array) { return heads_of(array, 5, stride, rows); };
    Array original(type.dtype, {rows, heads * dim});
    Array rstd(DType::f32, {rows, heads});
    ops::head_rms_norm_forward(stream, slice(wide), rows, heads, dim, o.weight, kEps, original,
                               rstd);
    ops::head_rms_norm_backward(stream, slice(wide_gradient), rows, heads, dim, original, o.weight,
                                rstd, o.weight_grad, o.scratch);
    const Reference want =
        reference(p, doubles(o.x), doubles(o.weight), doubles(o.bias), doubles(o.dy), false);
    Array y(type.dtype, {rows * heads, dim});
    Array dx = y;
    bool padding_untouched = true;
    for (int64_t i = 0; i < rows * stride; ++i) {
      const int64_t column = i % stride - 5;
      if (column < 0 || column >= heads * dim) {
        padding_untouched &= wide.get(i) == 7.0F && wide_gradient.get(i) == 7.0F;
        continue;
      }
      y.set(i / stride * heads * dim + column, wide.get(i));
      dx.set(i / stride * heads * dim + column, wide_gradient.get(i));
    }
    CHECK(padding_untouched);
    CHECK(original.bytes() == o.x.bytes());
    CHECK(worst_error(y, want.y, type.rounding, kArithmetic) <= 1);
    CHECK(worst_error(dx, want.dx, type.rounding, kArithmetic) <= 1);
    CHECK(worst_error(o.weight_grad, plus_half(want.weight_grad), 0, kSumOverRows) <= 1);
  }
}

TEST_CASE("norms refuse shapes that do not fit", "[norm]") {
  const Problem p = {4, 8, kFloatTypes[0], kFloatTypes[0]};
  Operands o(p);
  Array short_weight(DType::f32, {7});
  CHECK_THROWS_AS(ops::rms_norm_forward(cpu_stream(), o.x, short_weight, kEps, o.y, o.rstd),
                  InternalError);
  Array short_scratch(DType::f32, {15});
  CHECK_THROWS_AS(ops::layer_norm_backward(cpu_stream(), o.dy, o.x, o.weight, o.mean, o.rstd, o.dx,
                                           false, o.weight_grad, o.bias_grad, short_scratch),
                  InternalError);
}

}  // namespace
}  // namespace fp8train::test
