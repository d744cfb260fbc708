// RMSNorm and LayerNorm, forward and backward: within a tolerance of double precision and of the
// cpu, since cuda adds up in an order of its own and has its own reciprocal root.

#include "ops/norm/norm.h"

#include <catch2/catch.hpp>

#include "ops/cuda/norm_checks.h"
#include "ops/norm_cases.h"
#include "ops/pointwise/elementwise.h"

namespace fp8train::test {
namespace {

using namespace norms;

void check_forward(const Case& c, DType x_type, DType y_type) {
  check_near("rms_norm_forward", c, x_type, y_type, [&](Side& side) -> std::vector<Array> {
    const View y = side.space(y_type, {c.rows, c.n}, c.offset);
    const View rstd = side.space(DType::f32, {c.rows});
    ops::norm_forward(side.stream(), {.x = side.put(values_of(c, x_type, 1), c.offset),
                                      .weight = side.put(weight_of(c, 2)),
                                      .eps = kNormEps,
                                      .y = y,
                                      .rstd = rstd});
    return {side.get(y), side.get(rstd)};
  });
  for (const bool biased : {false, true}) {
    check_near("layer_norm_forward", c, x_type, y_type, [&](Side& side) -> std::vector<Array> {
      const View y = side.space(y_type, {c.rows, c.n}, c.offset);
      const View mean = side.space(DType::f32, {c.rows});
      const View rstd = side.space(DType::f32, {c.rows});
      const View bias = side.put(weight_of(c, 3), c.offset);
      ops::norm_forward(side.stream(), {.x = side.put(values_of(c, x_type, 1), c.offset),
                                        .weight = side.put(weight_of(c, 2)),
                                        .bias = biased ? ConstView(bias) : ConstView(),
                                        .eps = kNormEps,
                                        .y = y,
                                        .mean = mean,
                                        .rstd = rstd});
      return {side.get(y), side.get(mean), side.get(rstd)};
    });
  }
}

/// Row statistics as they could be; those of the forward pass are not needed.
Array statistics_of(const Case& c, uint32_t seed) {
  return Array(DType::f32, {c.rows}, random_values(c.rows, seed, 0.3F));
}

void check_backward(const Case& c, DType x_type, DType dy_type, bool accumulate) {
  const int64_t chunks = ops::norm_partial_rows(c.rows);
  check_near("rms_norm_backward", c, x_type, dy_type, [&](Side& side) -> std::vector<Array> {
    const View dx = side.put(values_of(c, x_type, 5), c.offset);
    const View weight_grad = side.put(weight_of(c, 6));
    ops::norm_backward(side.stream(), {.dy = side.put(values_of(c, dy_type, 4), c.offset),
                                       .x = side.put(values_of(c, x_type, 1), c.offset),
                                       .weight = side.put(weight_of(c, 2)),
                                       .rstd = side.put(statistics_of(c, 7)),
                                       .dx = dx,
                                       .accumulate = accumulate,
                                       .weight_grad = weight_grad,
                                       .scratch = side.space(DType::f32, {chunks, c.n})});
    return {side.get(dx), side.get(weight_grad)};
  });
  check_near("layer_norm_backward", c, x_type, dy_type, [&](Side& side) -> std::vector<Array> {
    const View dx = side.put(values_of(c, x_type, 5), c.offset);
    const View weight_grad = side.put(weight_of(c, 6));
    const View bias_grad = side.put(weight_of(c, 8));
    ops::norm_backward(side.stream(), {.dy = side.put(values_of(c, dy_type, 4), c.offset),
                                       .x = side.put(values_of(c, x_type, 1), c.offset),
                                       .weight = side.put(weight_of(c, 2)),
                                       .mean = side.put(statistics_of(c, 9)),
                                       .rstd = side.put(statistics_of(c, 7)),
                                       .dx = dx,
                                       .accumulate = accumulate,
                                       .weight_grad = weight_grad,
                                       .bias_grad = accumulate ? bias_grad : View(),
                                       .scratch = side.space(DType::f32, {2 * chunks, c.n})});
    return {side.get(dx), side.get(weight_grad), side.get(bias_grad)};
  });
}

TEST_CASE("norm forward is the cpu's for every pair of types", "[cuda][norm]") {
  for (const DType x_type : FloatTypes::kTypes) {
    for (const DType y_type : FloatTypes::kTypes) {
      check_forward({67, 40}, x_type, y_type);
    }
  }
  for (const Case& c : kCases) {
    check_forward(c, DType::f32, DType::bf16);
    check_forward(c, DType::bf16, DType::bf16);
  }
}

enum class SumIn { own, x, delta };

/// The sum, what is made of it, and its cast: in the norm's pass, or after an addition.
std::vector<Array> residual_norm(Side& side, const Case& c, DType type, bool layer, bool in_pass,
                                 SumIn in, bool casts) {
  const Shape shape = {c.rows, c.n};
  const View x = side.put(values_of(c, type, 1), c.offset);
  const View delta = side.put(values_of(c, type, 5), c.offset);
  const View own = side.space(type, shape, c.offset);
  const View sum = in == SumIn::own ? own : in == SumIn::x ? x : delta;
  const View y = side.space(type, shape, c.offset);
  const View mean = side.put(statistics_of(c, 9)), rstd = side.space(DType::f32, {c.rows});
  const View codes = side.space(DType::e4m3, shape);
  const View columnwise = side.space(DType::e4m3, {c.n, c.rows});
  ops::QuantizeSink cast;
  cast.amax = side.put_value(0.25F);
  if (casts) {
    cast.out = {codes, columnwise};
    set_tensor_cast(cast.out, plain(DType::e4m3), side.put_value(3.5F), side.put_value(0.0F));
  }
  const ConstView weight = side.put(weight_of(c, 2));
  const ConstView bias = side.put(weight_of(c, 3));
  ConstView from = x;
  ops::ResidualAdd residual = {delta, sum};
  if (!in_pass) {
    ops::add(side.stream(), x, delta, sum);
    from = sum;
    residual = {};
  }
  if (layer) {
    ops::norm_forward(side.stream(), {.x = from,
                                      .weight = weight,
                                      .bias = bias,
                                      .eps = kNormEps,
                                      .y = y,
                                      .mean = mean,
                                      .rstd = rstd,
                                      .cast = cast,
                                      .residual = residual});
  } else {
    ops::norm_forward(side.stream(), {.x = from,
                                      .weight = weight,
                                      .eps = kNormEps,
                                      .y = y,
                                      .rstd = rstd,
                                      .cast = cast,
                                      .residual = residual});
  }
  std::vector<Array> made = {side.get(sum), side.get(y), side.get(mean), side.get(rstd),
                             Array(DType::f32, {1}, {side.get_value(cast.amax)})};
  if (casts) {
    made.push_back(side.get(codes));
    made.push_back(side.get(columnwise));
  }
  return made;
}

TEST_CASE("a norm that adds the residual has the bits of the addition and the norm",
          "[cuda][norm]") {
  for (const Case& c : kCases) {
    for (const DType type : {DType::bf16, DType::f16}) {
      for (const SumIn in : {SumIn::own, SumIn::x, SumIn::delta}) {
        const bool layer = (c.rows + static_cast<int64_t>(in)) % 2 == 1;
        const bool casts = in == SumIn::own || c.n == 40;
        INFO(c.rows << " x " << c.n << " " << name_of(type) << " layer " << layer << " casts "
                    << casts << " sum in " << static_cast<int>(in));
        const auto apart = on_cuda(
            [&](Side& side) { return residual_norm(side, c, type, layer, false, in, casts); });
        const auto in_pass = on_cuda(
            [&](Side& side) { return residual_norm(side, c, type, layer, true, in, casts); });
        for (size_t i = 0; i < apart.size(); ++i) {
          INFO("output " << i);
          CHECK(same_values(in_pass[i], apart[i]));
        }
      }
    }
  }
}

TEST_CASE("norm backward is the cpu's for every pair of types", "[cuda][norm]") {
  for (const DType x_type : FloatTypes::kTypes) {
    for (const DType dy_type : FloatTypes::kTypes) {
      check_backward({67, 40}, x_type, dy_type, true);
    }
  }
  for (const Case& c : kCases) {
    for (const bool accumulate : {false, true}) {
      check_backward(c, DType::f32, DType::bf16, accumulate);
      check_backward(c, DType::bf16, DType::bf16, accumulate);
    }
  }
}

TEST_CASE("norm backward in place, row by row", "[cuda][norm][small]") {
  for (const int64_t n : {int64_t{39}, int64_t{40}}) {
    const Case c = {70, n};
    check_near("in place", c, DType::bf16, DType::bf16, [&](Side& side) -> std::vector<Array> {
      const View dx = side.put(values_of(c, DType::bf16, 4));
      const View weight_grad = side.put(weight_of(c, 6));
      ops::norm_backward(side.stream(),
                         {.dy = dx,
                          .x = side.put(values_of(c, DType::bf16, 1)),
                          .weight = side.put(weight_of(c, 2)),
                          .rstd = side.put(statistics_of(c, 7)),
                          .dx = dx,
                          .accumulate = false,
                          .weight_grad = weight_grad,
                          .scratch = side.space(DType::f32, {ops::norm_partial_rows(c.rows), n})});
      return {side.get(dx), side.get(weight_grad)};
    });
  }
}

TEST_CASE("gradients of norms are overwritten where that is said", "[cuda][norm][small]") {
  const Case c = {70, 40};
  const auto gradients = [&](Side& side, bool overwrite) -> std::vector<Array> {
    const auto gradient = [&] {
      return overwrite ? side.space(DType::f32, {c.n}) : side.put(Array(DType::f32, {c.n}));
    };
    const View weight_grad = gradient(), bias_grad = gradient();
    ops::norm_backward(side.stream(), {.dy = side.put(values_of(c, DType::bf16, 4)),
                                       .x = side.put(values_of(c, DType::bf16, 1)),
                                       .weight = side.put(weight_of(c, 2)),
                                       .mean = side.put(statistics_of(c, 9)),
                                       .rstd = side.put(statistics_of(c, 7)),
                                       .dx = side.space(DType::bf16, {c.rows, c.n}),
                                       .weight_grad = weight_grad,
                                       .bias_grad = bias_grad,
                                       .scratch = side.space(
                                           DType::f32, {2 * ops::norm_partial_rows(c.rows), c.n}),
                                       .overwrite_weight_grad = overwrite});
    return {side.get(weight_grad), side.get(bias_grad)};
  };
  const auto overwritten = on_cuda([&](Side& side) { return gradients(side, true); });
  const auto added = on_cuda([&](Side& side) { return gradients(side, false); });
  CHECK(same_values(overwritten[0], added[0]));
  CHECK(same_values(overwritten[1], added[1]));
}

NormOperands on_side(Side& side, const NormProblem& p, bool layer, bool accumulate) {
  NormOperands o(p);
  const View x = side.put(o.x), dy = side.put(o.dy), y = side.put(o.y), dx = side.put(o.dx);
  const View weight = side.put(o.weight), weight_grad = side.put(o.weight_grad);
  const View bias = side.put(o.bias), bias_grad = side.put(o.bias_grad);
  const View mean = side.put(o.mean), rstd = side.put(o.rstd);
  const View scratch = side.space(DType::f32, {2 * ops::norm_partial_rows(p.rows) * p.n});
  if (layer) {
    ops::norm_forward(side.stream(), {.x = x,
                                      .weight = weight,
                                      .bias = bias,
                                      .eps = kNormEps,
                                      .y = y,
                                      .mean = mean,
                                      .rstd = rstd});
    ops::norm_backward(side.stream(), {.dy = dy,
                                       .x = x,
                                       .weight = weight,
                                       .mean = mean,
                                       .rstd = rstd,
                                       .dx = dx,
                                       .accumulate = accumulate,
                                       .weight_grad = weight_grad,
                                       .bias_grad = bias_grad,
                                       .scratch = scratch});
  } else {
    ops::norm_forward(side.stream(),
                      {.x = x, .weight = weight, .eps = kNormEps, .y = y, .rstd = rstd});
    ops::norm_backward(side.stream(), {.dy = dy,
                                       .x = x,
                                       .weight = weight,
                                       .rstd = rstd,
                                       .dx = dx,
                                       .accumulate = accumulate,
                                       .weight_grad = weight_grad,
                                       .scratch = scratch});
  }
  o.y = side.get(y);
  o.dx = side.get(dx);
  o.mean = side.get(mean);
  o.rstd = side.get(rstd);
  o.weight_grad = side.get(weight_grad);
  o.bias_grad = side.get(bias_grad);
  return o;
}

TEST_CASE("norms on cuda match double precision", "[cuda][norm]") {
  // In teams and in any plan: 300 does not go in packs.
  const FloatType fp32 = kFloatTypes[0];
  const FloatType bf16_type = kFloatTypes[1];
  for (const NormProblem& p :
       {NormProblem{130, 296, bf16_type, bf16_type}, NormProblem{530, 64, bf16_type, bf16_type},
        NormProblem{19, 4096, bf16_type, bf16_type}, NormProblem{130, 300, bf16_type, fp32},
        NormProblem{70, 264, fp32, bf16_type}}) {
    for (const bool layer : {false, true}) {
      const bool accumulate = p.n % 8 == 0;
      const auto run = [&](Side& side) { return on_side(side, p, layer, accumulate); };
      const NormOperands o = on_cuda(run);
      const NormReference want =
          norm_reference(p, doubles(o.x), doubles(o.weight), doubles(o.bias), doubles(o.dy), layer);
      INFO("rows " << p.rows << " n " << p.n << " layer " << layer);
      CHECK(worst_error(o.y, want.y, p.y.rounding, kNormArithmetic) <= 1);
      CHECK(worst_error(o.rstd, want.rstd, 0x1p-20, 0) <= 1);
      CHECK(worst_error(o.dx, accumulate ? plus_half(want.dx) : want.dx, p.x.rounding,
                        kNormArithmetic) <= 1);
      CHECK(worst_error(o.weight_grad, plus_half(want.weight_grad), 0, kNormSumOverRows) <= 1);
      if (layer) {
        CHECK(worst_error(o.mean, want.mean, 0, kNormArithmetic) <= 1);
        CHECK(worst_error(o.bias_grad, plus_half(want.bias_grad), 0, kNormSumOverRows) <= 1);
      }
      const NormOperands again = on_cuda(run);
      CHECK(again.weight_grad.bytes() == o.weight_grad.bytes());
      CHECK(again.dx.bytes() == o.dx.bytes());
    }
  }
}

}  // namespace
}  // namespace fp8train::test
