#include "ops/norm/norm.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "ops/attention/attention.h"
#include "ops/norm_cases.h"

namespace fp8train::test {
namespace {

std::vector<NormProblem> problems() {
  std::vector<NormProblem> all;
  for (const FloatType x : kFloatTypes) {
    for (const FloatType y : kFloatTypes) {
      for (const auto& [rows, n] : {std::pair{1, 8}, {5, 37}, {130, 300}}) {
        all.push_back({rows, n, x, y});
      }
    }
  }
  return all;
}

TEST_CASE("RMSNorm and LayerNorm match double precision", "[norm]") {
  const Stream stream = cpu_stream();
  for (const NormProblem& p : problems()) {
    for (const bool layer : {false, true}) {
      for (const bool accumulate : {false, true}) {
        NormOperands o(p);
        ops::norm_forward(stream, o.forward(layer));
        ops::NormBackward backward = o.backward(layer);
        backward.accumulate = accumulate;
        ops::norm_backward(stream, backward);
        const NormReference want = norm_reference(p, doubles(o.x), doubles(o.weight),
                                                  doubles(o.bias), doubles(o.dy), layer);
        INFO("rows " << p.rows << " n " << p.n << " layer " << layer << " x " << name_of(p.x.dtype)
                     << " y " << name_of(p.y.dtype));
        CHECK(worst_error(o.y, want.y, p.y.rounding, kNormArithmetic) <= 1);
        CHECK(worst_error(o.rstd, want.rstd, 0x1p-20, 0) <= 1);
        CHECK(worst_error(o.dx, accumulate ? plus_half(want.dx) : want.dx, p.x.rounding,
                          kNormArithmetic) <= 1);
        CHECK(worst_error(o.weight_grad, plus_half(want.weight_grad), 0, kNormSumOverRows) <= 1);
        if (layer) {
          CHECK(worst_error(o.mean, want.mean, 0, kNormArithmetic) <= 1);
          CHECK(worst_error(o.bias_grad, plus_half(want.bias_grad), 0, kNormSumOverRows) <= 1);
        }
      }
    }
  }
}

TEST_CASE("the norms' gradients are those of finite differences", "[norm]") {
  // The reference's own gradient, checked against central differences of its forward pass.
  const NormProblem p = {3, 11, kFloatTypes[0], kFloatTypes[0]};
  NormOperands o(p);
  const std::vector<double> w = doubles(o.weight);
  const std::vector<double> b = doubles(o.bias);
  const std::vector<double> dy = doubles(o.dy);
  for (const bool layer : {false, true}) {
    std::vector<double> x = doubles(o.x);
    const NormReference at = norm_reference(p, x, w, b, dy, layer);
    const auto loss = [&] {
      const NormReference r = norm_reference(p, x, w, b, dy, layer);
      double sum = 0;
      for (size_t i = 0; i < dy.size(); ++i) {
        sum += r.y[i] * dy[i];
      }
      return sum;
    };
    for (size_t i = 0; i < x.size(); ++i) {
      const double stored = x[i];
      x[i] = stored + 1e-5;
      const double above = loss();
      x[i] = stored - 1e-5;
      const double below = loss();
      x[i] = stored;
      CHECK(at.dx[i] == Approx((above - below) / 2e-5).margin(1e-6));
    }
  }
}

TEST_CASE("norms have the same bits at every level and thread count", "[norm]") {
  for (const FloatType type : kFloatTypes) {
    const NormProblem p = {150, 333, type, type};
    CHECK(same_everywhere([&](const ops::OpTable& table) {
      const Stream stream = cpu_stream();
      NormOperands o(p);
      Bits bits;
      table.norm_forward(stream, o.forward(false));
      bits.add(o.y);
      ops::NormBackward accumulated = o.backward(false);
      accumulated.accumulate = true;
      table.norm_backward(stream, accumulated);
      bits.add(o.dx);
      table.norm_forward(stream, o.forward(true));
      bits.add(o.y);
      table.norm_backward(stream, o.backward(true));
      for (const Array* array : {&o.dx, &o.mean, &o.rstd, &o.weight_grad, &o.bias_grad}) {
        bits.add(*array);
      }
      return bits;
    }));
  }
}

enum class SumIn { own, x, delta };

/// The sum, and the norm of it with its cast: in the norm's pass, or after an addition.
Bits residual_norm(const ops::OpTable& table, const NormProblem& p, bool layer, bool in_pass,
                   SumIn in) {
  const Stream stream = cpu_stream();
  NormOperands o(p);
  Array delta(p.x.dtype, {p.rows, p.n}, random_values(p.rows * p.n, 5));
  Array own = o.x;
  Array& sum = in == SumIn::own ? own : in == SumIn::x ? o.x : delta;
  Array codes(DType::e4m3, {p.rows, p.n}), columnwise(DType::e4m3, {p.n, p.rows});
  float amax = 0.25F, scale = 3.5F, scale_inv = 0.0F;
  ops::QuantizeStatistics statistics = {};
  ops::QuantizeSink cast = {.out = {}, .amax = &amax, .statistics = &statistics};
  cast.out = {codes.view(), columnwise.view()};
  set_tensor_cast(cast.out, plain(DType::e4m3), &scale, &scale_inv);
  ops::NormForward norm = o.forward(layer);
  norm.cast = cast;
  if (in_pass) {
    norm.residual = {delta, sum};
  } else {
    table.add(stream, o.x, delta, sum);
    norm.x = sum;
  }
  table.norm_forward(stream, norm);
  Bits bits;
  for (const Array* array : {&sum, &o.y, &o.mean, &o.rstd, &codes, &columnwise}) {
    bits.add(*array);
  }
  bits.add_value(amax);
  bits.add_value(scale_inv);
  bits.add_value(statistics);
  return bits;
}

TEST_CASE("a norm that adds the residual has the bits of the addition and the norm", "[norm]") {
  for (const FloatType x : kFloatTypes) {
    for (const FloatType y : kFloatTypes) {
      for (const bool layer : {false, true}) {
        for (const SumIn in : {SumIn::own, SumIn::x, SumIn::delta}) {
          const NormProblem p = {67, 333, x, y};
          const Bits apart = residual_norm(*cpu_tables().back(), p, layer, false, in);
          CHECK(apart == residual_norm(*cpu_tables().back(), p, layer, true, in));
        }
      }
    }
  }
  const NormProblem p = {150, 333, kFloatTypes[1], kFloatTypes[1]};
  CHECK(same_everywhere(
      [&](const ops::OpTable& table) { return residual_norm(table, p, false, true, SumIn::own); }));
}

TEST_CASE("gradients of norms are overwritten where that is said", "[norm]") {
  const Stream stream = cpu_stream();
  const NormProblem p = {130, 37, kFloatTypes[1], kFloatTypes[1]};
  for (const bool layer : {false, true}) {
    const auto gradients = [&](float before, bool overwrite) {
      NormOperands o(p);
      for (Array* array : {&o.weight_grad, &o.bias_grad}) {
        for (int64_t i = 0; i < p.n; ++i) {
          array->set(i, before);
        }
      }
      std::fill_n(o.rstd.as<float>(), p.rows, 1.25F);
      std::fill_n(o.mean.as<float>(), p.rows, 0.5F);
      ops::NormBackward backward = o.backward(layer);
      backward.overwrite_weight_grad = overwrite;
      ops::norm_backward(stream, backward);
      Bits bits;
      bits.add(o.weight_grad);
      if (layer) {
        bits.add(o.bias_grad);
      }
      return bits;
    };
    CHECK(gradients(std::nanf(""), true) == gradients(0.0F, false));
    CHECK(!(gradients(0.5F, true) == gradients(0.5F, false)));
  }
}

TEST_CASE("the norm of heads is RMSNorm on slices of wider rows", "[norm]") {
  const int64_t rows = 70;
  const int64_t heads = 3;
  const int64_t dim = 24;
  const int64_t stride = 100;
  const Stream stream = cpu_stream();
  for (const FloatType type : kFloatTypes) {
    const NormProblem p = {rows * heads, dim, type, type};
    NormOperands o(p);
    Array wide(type.dtype, {rows, stride}, std::vector<float>(rows * stride, 7.0F));
    Array wide_gradient = wide;
    for (int64_t i = 0; i < p.rows * dim; ++i) {
      const int64_t at = i / (heads * dim) * stride + 5 + i % (heads * dim);
      wide.set(at, o.x.get(i));
      wide_gradient.set(at, o.dy.get(i));
    }
    const auto slice = [&](Array& array) {
      return View{heads_of(array, 5, stride, rows).data, type.dtype, {rows * heads, dim}};
    };
    Array original(type.dtype, {rows, heads * dim});
    Array rstd(DType::f32, {rows, heads});
    ops::norm_forward(stream, {.x = slice(wide),
                               .weight = o.weight,
                               .eps = kNormEps,
                               .y = slice(wide),
                               .rstd = rstd,
                               .rows = {stride, heads},
                               .original = original});
    ops::NormBackward backward = {.dy = slice(wide_gradient),
                                  .x = reshaped(original.view(), {rows * heads, dim}),
                                  .weight = o.weight,
                                  .rstd = rstd,
                                  .dx = slice(wide_gradient),
                                  .weight_grad = o.weight_grad,
                                  .scratch = o.scratch,
                                  .rows = {stride, heads}};
    ops::norm_backward(stream, backward);
    const NormReference want =
        norm_reference(p, doubles(o.x), doubles(o.weight), doubles(o.bias), doubles(o.dy), false);
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
    CHECK(worst_error(y, want.y, type.rounding, kNormArithmetic) <= 1);
    CHECK(worst_error(dx, want.dx, type.rounding, kNormArithmetic) <= 1);
    CHECK(worst_error(o.weight_grad, plus_half(want.weight_grad), 0, kNormSumOverRows) <= 1);
    backward.overwrite_weight_grad = true;
    ops::norm_backward(stream, backward);
    const NormReference again =
        norm_reference(p, doubles(o.x), doubles(o.weight), doubles(o.bias), doubles(dx), false);
    CHECK(worst_error(o.weight_grad, again.weight_grad, 0, kNormSumOverRows) <= 1);
  }
}

TEST_CASE("norms refuse shapes that do not fit", "[norm]") {
  const NormProblem p = {4, 8, kFloatTypes[0], kFloatTypes[0]};
  NormOperands o(p);
  const auto refused = [&](const auto& change) {
    ops::NormForward call = o.forward(false);
    change(call);
    CHECK_THROWS_AS(ops::norm_forward(cpu_stream(), call), InternalError);
  };
  Array short_weight(DType::f32, {7});
  refused([&](ops::NormForward& call) { call.weight = short_weight; });
  Array other_type(DType::bf16, {4, 8});
  refused([&](ops::NormForward& call) { call.residual = {other_type, o.x}; });
  refused([&](ops::NormForward& call) { call.residual = {o.dx, {}}; });
  refused([&](ops::NormForward& call) { call.bias = o.bias; });  // RMSNorm has none
  Array short_scratch(DType::f32, {15});
  ops::NormBackward backward = o.backward(true);
  backward.scratch = short_scratch;
  CHECK_THROWS_AS(ops::norm_backward(cpu_stream(), backward), InternalError);
  refused([&](ops::NormForward& call) { call.rows = {15, 2}; });  // heads overlap
  refused([&](ops::NormForward& call) { call.rows = {24, 3}; });  // of four rows
  refused([&](ops::NormForward& call) { call.original = short_weight; });
}

}  // namespace
}  // namespace fp8train::test
