// RMSNorm and LayerNorm, forward and backward: within a tolerance of double precision and of the
// cpu, since cuda adds up in an order of its own and has its own reciprocal root.

#include "ops/norm/norm.h"

#include <catch2/catch.hpp>

#include "ops/attention/attention.h"
#include "ops/cuda/cuda_test_support.h"
#include "ops/norm_cases.h"
#include "ops/pointwise/elementwise.h"

namespace fp8train::test {
namespace {

constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16};

// Two results that are off by a few roundings of fp32 each may be rounded to neighbours of their
// type, which are 2 roundings apart. What is added: sums over a row of up to 13000 values of the
// size of 1 by trees are off by about 20 roundings at magnitudes of up to 30, 2^-15 with room for
// the cancellation in dx. Sums over up to 130 rows have the tolerance of the cpu's, twice.
constexpr double kCancellation = 0x1p-15;
double neighbours(DType type) {
  return type == DType::bf16 ? 0x1p-7 : type == DType::f16 ? 0x1p-10 : 0x1p-20;
}

struct Case {
  int64_t rows, n;
  bool adversarial = false;
  int64_t offset = 0;  // elements by which every tensor is less aligned
};

// Odd widths, offsets and types other than bf16 take the kernels for any row; 18000 columns do so
// for their length, and 26000 have their sums over rows in memory. 40, 136: a team of a few
// threads; 1000: of a warp; 1304 of 64 threads, 4096 of 128 to 256, 5128 of a number that is no
// power of two.
const Case kCases[] = {
    {1, 1},         {5, 7},        {67, 40},          {3, 1000},     {4, 520},          {130, 64},
    {9, 136, true}, {2, 77, true}, {3, 72, false, 1}, {2, 13000},    {35, 1304},        {33, 4096},
    {3, 5128},      {2, 18000},    {2, 26000},        {5, 9, false}, {70, 24, false, 8}};

Array values_of(const Case& c, DType type, uint32_t seed) {
  const int64_t count = c.rows * c.n;
  return Array(type, {c.rows, c.n},
               c.adversarial ? adversarial_values(count, seed) : random_values(count, seed));
}

Array weight_of(const Case& c, uint32_t seed) {
  return Array(DType::f32, {c.n}, random_values(c.n, seed));
}

/// Every output of cuda is the cpu's within its tolerance: relative to its type, or a sum over
/// rows.
template <typename Run>
void check_near(const char* what, const Case& c, DType x, DType y, Run&& run) {
  INFO(what << " of " << c.rows << " x " << c.n << ", " << name_of(x) << " and " << name_of(y)
            << ", offset " << c.offset << (c.adversarial ? ", adversarial" : ""));
  const std::vector<Array> cuda = on_cuda(run);
  const std::vector<Array> cpu = on_cpu(run);
  REQUIRE(cuda.size() == cpu.size());
  for (size_t i = 0; i < cpu.size(); ++i) {
    INFO("output " << i);
    CHECK(worst_difference(cuda[i], cpu[i], neighbours(cpu[i].dtype()), kCancellation) <= 1);
  }
}

void check_forward(const Case& c, DType x_type, DType y_type) {
  check_near("rms_norm_forward", c, x_type, y_type, [&](Side& side) -> std::vector<Array> {
    const View y = side.space(y_type, {c.rows, c.n}, c.offset);
    const View rstd = side.space(DType::f32, {c.rows});
    ops::rms_norm_forward(side.stream(), {.x = side.put(values_of(c, x_type, 1), c.offset),
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
      ops::layer_norm_forward(side.stream(), {.x = side.put(values_of(c, x_type, 1), c.offset),
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
    ops::rms_norm_backward(side.stream(), {.dy = side.put(values_of(c, dy_type, 4), c.offset),
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
    ops::layer_norm_backward(side.stream(), {.dy = side.put(values_of(c, dy_type, 4), c.offset),
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
  for (const DType x_type : kTypes) {
    for (const DType y_type : kTypes) {
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
    cast.out = {.rowwise = {.codes = codes},
                .columnwise = {.codes = columnwise},
                .tensor_scale = side.put_value(3.5F),
                .tensor_scale_inv = side.put_value(0.0F),
                .format = {.dtype = DType::e4m3}};
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
    ops::layer_norm_forward(side.stream(), {.x = from,
                                            .weight = weight,
                                            .bias = bias,
                                            .eps = kNormEps,
                                            .y = y,
                                            .mean = mean,
                                            .rstd = rstd,
                                            .cast = cast,
                                            .residual = residual});
  } else {
    ops::rms_norm_forward(side.stream(), {.x = from,
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
        const bool layer = c.rows % 2 == 1;
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
  for (const DType x_type : kTypes) {
    for (const DType dy_type : kTypes) {
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
      ops::rms_norm_backward(
          side.stream(), {.dy = dx,
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
    ops::layer_norm_backward(
        side.stream(),
        {.dy = side.put(values_of(c, DType::bf16, 4)),
         .x = side.put(values_of(c, DType::bf16, 1)),
         .weight = side.put(weight_of(c, 2)),
         .mean = side.put(statistics_of(c, 9)),
         .rstd = side.put(statistics_of(c, 7)),
         .dx = side.space(DType::bf16, {c.rows, c.n}),
         .weight_grad = weight_grad,
         .bias_grad = bias_grad,
         .scratch = side.space(DType::f32, {2 * ops::norm_partial_rows(c.rows), c.n}),
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
    ops::layer_norm_forward(side.stream(), {.x = x,
                                            .weight = weight,
                                            .bias = bias,
                                            .eps = kNormEps,
                                            .y = y,
                                            .mean = mean,
                                            .rstd = rstd});
    ops::layer_norm_backward(side.stream(), {.dy = dy,
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
    ops::rms_norm_forward(side.stream(),
                          {.x = x, .weight = weight, .eps = kNormEps, .y = y, .rstd = rstd});
    ops::rms_norm_backward(side.stream(), {.dy = dy,
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

/// Heads of a fused projection: `before` elements, then heads * head_dim, then one more.
struct Heads {
  int64_t rows, heads, head_dim, before, after;
};

void check_heads(const Heads& h, DType type, DType original_type) {
  const Case c = {h.rows, h.before + h.heads * h.head_dim + h.after};
  const int64_t width = h.heads * h.head_dim;
  const auto slice = [&](const View& fused) {
    char* data = static_cast<char*>(fused.data) + static_cast<size_t>(h.before) * size_of(type);
    return ops::HeadsView{data, type, c.n, h.rows};
  };
  const Array weight(DType::f32, {h.head_dim}, random_values(h.head_dim, 2));
  check_near("head_rms_norm_forward", c, type, type, [&](Side& side) -> std::vector<Array> {
    const View fused = side.put(values_of(c, type, 1));
    const View original = side.space(type, {h.rows, width});
    const View rstd = side.space(DType::f32, {h.rows, h.heads});
    ops::head_rms_norm_forward(side.stream(), {.x = slice(fused),
                                               .rows = h.rows,
                                               .heads = h.heads,
                                               .head_dim = h.head_dim,
                                               .weight = side.put(weight),
                                               .eps = kNormEps,
                                               .original = original,
                                               .rstd = rstd});
    return {side.get(fused), side.get(original), side.get(rstd)};
  });
  check_near(
      "head_rms_norm_backward", c, type, original_type, [&](Side& side) -> std::vector<Array> {
        const View fused = side.put(values_of(c, type, 1));
        const View grad = side.put(Array(DType::f32, {h.head_dim}));
        const Array stored(original_type, {h.rows, width}, random_values(h.rows * width, 5));
        const Array rstd(DType::f32, {h.rows, h.heads}, random_values(h.rows * h.heads, 7, 0.3F));
        ops::head_rms_norm_backward(
            side.stream(),
            {.dx = slice(fused),
             .rows = h.rows,
             .heads = h.heads,
             .head_dim = h.head_dim,
             .original = side.put(stored),
             .weight = side.put(weight),
             .rstd = side.put(rstd),
             .weight_grad = grad,
             .scratch = side.space(DType::f32, {ops::norm_partial_rows(h.rows), h.head_dim})});
        return {side.get(fused), side.get(grad)};
      });
}

TEST_CASE("RMSNorm of heads is the cpu's", "[cuda][norm]") {
  for (const DType type : kTypes) {
    check_heads({66, 3, 32, 8, 16}, type, DType::bf16);
    check_heads({65, 5, 64, 0, 64}, type, DType::f32);
    check_heads({5, 2, 10, 3, 1}, type, type);
    check_heads({3, 1, 16, 8, 8}, type, type);
  }
}

}  // namespace
}  // namespace fp8train::test
