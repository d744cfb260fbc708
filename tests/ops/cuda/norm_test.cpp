// RMSNorm and LayerNorm, forward and backward: exact, since rows are added up over the cpu's
// sixteen lanes and weight gradients over its chunks of 64 rows.

#include "ops/norm.h"

#include <catch2/catch.hpp>

#include "ops/attention.h"
#include "ops/cuda/cuda_test_support.h"

namespace fp8train::test {
namespace {

constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16};
constexpr float kEps = 1e-5F;

struct Case {
  int64_t rows, n;
  bool adversarial = false;
  int64_t offset = 0;  // elements by which every tensor is less aligned
};

// Odd widths and offsets read rows in place; 13000 columns do so for their length.
const Case kCases[] = {
    {1, 1},         {5, 7},        {67, 40},          {3, 1000},  {4, 520},          {130, 64},
    {9, 136, true}, {2, 77, true}, {3, 72, false, 1}, {2, 13000}, {70, 24, false, 8}};

Array values_of(const Case& c, DType type, uint32_t seed) {
  const int64_t count = c.rows * c.n;
  return Array(type, {c.rows, c.n},
               c.adversarial ? adversarial_values(count, seed) : random_values(count, seed));
}

Array weight_of(const Case& c, uint32_t seed) {
  return Array(DType::f32, {c.n}, random_values(c.n, seed));
}

template <typename Run>
void check_exact(const char* what, const Case& c, DType x, DType y, Run&& run) {
  INFO(what << " of " << c.rows << " x " << c.n << ", " << name_of(x) << " and " << name_of(y)
            << ", offset " << c.offset << (c.adversarial ? ", adversarial" : ""));
  const std::vector<Array> cuda = on_cuda(run);
  const std::vector<Array> cpu = on_cpu(run);
  REQUIRE(cuda.size() == cpu.size());
  for (size_t i = 0; i < cpu.size(); ++i) {
    INFO("output " << i);
    CHECK(same_values(cuda[i], cpu[i]));
  }
}

void check_forward(const Case& c, DType x_type, DType y_type) {
  check_exact("rms_norm_forward", c, x_type, y_type, [&](Side& side) -> std::vector<Array> {
    const View y = side.space(y_type, {c.rows, c.n}, c.offset);
    const View rstd = side.space(DType::f32, {c.rows});
    ops::rms_norm_forward(side.stream(), side.put(values_of(c, x_type, 1), c.offset),
                          side.put(weight_of(c, 2)), kEps, y, rstd);
    return {side.get(y), side.get(rstd)};
  });
  for (const bool biased : {false, true}) {
    check_exact("layer_norm_forward", c, x_type, y_type, [&](Side& side) -> std::vector<Array> {
      const View y = side.space(y_type, {c.rows, c.n}, c.offset);
      const View mean = side.space(DType::f32, {c.rows});
      const View rstd = side.space(DType::f32, {c.rows});
      const View bias = side.put(weight_of(c, 3), c.offset);
      ops::layer_norm_forward(side.stream(), side.put(values_of(c, x_type, 1), c.offset),
                              side.put(weight_of(c, 2)), biased ? ConstView(bias) : ConstView(),
                              kEps, y, mean, rstd);
      return {side.get(y), side.get(mean), side.get(rstd)};
    });
  }
}

/// Row statistics as they could be; those of the forward pass are not needed for exactness.
Array statistics_of(const Case& c, uint32_t seed) {
  return Array(DType::f32, {c.rows}, random_values(c.rows, seed, 0.3F));
}

void check_backward(const Case& c, DType x_type, DType dy_type, bool accumulate) {
  const int64_t chunks = (c.rows + 63) / 64;
  check_exact("rms_norm_backward", c, x_type, dy_type, [&](Side& side) -> std::vector<Array> {
    const View dx = side.put(values_of(c, x_type, 5), c.offset);
    const View weight_grad = side.put(weight_of(c, 6));
    ops::rms_norm_backward(side.stream(), side.put(values_of(c, dy_type, 4), c.offset),
                           side.put(values_of(c, x_type, 1), c.offset), side.put(weight_of(c, 2)),
                           side.put(statistics_of(c, 7)), dx, accumulate, weight_grad,
                           side.space(DType::f32, {chunks, c.n}));
    return {side.get(dx), side.get(weight_grad)};
  });
  check_exact("layer_norm_backward", c, x_type, dy_type, [&](Side& side) -> std::vector<Array> {
    const View dx = side.put(values_of(c, x_type, 5), c.offset);
    const View weight_grad = side.put(weight_of(c, 6));
    const View bias_grad = side.put(weight_of(c, 8));
    ops::layer_norm_backward(side.stream(), side.put(values_of(c, dy_type, 4), c.offset),
                             side.put(values_of(c, x_type, 1), c.offset), side.put(weight_of(c, 2)),
                             side.put(statistics_of(c, 9)), side.put(statistics_of(c, 7)), dx,
                             accumulate, weight_grad, accumulate ? bias_grad : View(),
                             side.space(DType::f32, {2 * chunks, c.n}));
    return {side.get(dx), side.get(weight_grad), side.get(bias_grad)};
  });
}

TEST_CASE("norm forward has the cpu's bits for every pair of types", "[cuda][norm]") {
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

TEST_CASE("norm backward has the cpu's bits for every pair of types", "[cuda][norm]") {
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
    check_exact("in place", c, DType::bf16, DType::bf16, [&](Side& side) -> std::vector<Array> {
      const View dx = side.put(values_of(c, DType::bf16, 4));
      const View weight_grad = side.put(weight_of(c, 6));
      ops::rms_norm_backward(side.stream(), dx, side.put(values_of(c, DType::bf16, 1)),
                             side.put(weight_of(c, 2)), side.put(statistics_of(c, 7)), dx, false,
                             weight_grad, side.space(DType::f32, {2, n}));
      return {side.get(dx), side.get(weight_grad)};
    });
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
  check_exact("head_rms_norm_forward", c, type, type, [&](Side& side) -> std::vector<Array> {
    const View fused = side.put(values_of(c, type, 1));
    const View original = side.space(type, {h.rows, width});
    const View rstd = side.space(DType::f32, {h.rows, h.heads});
    ops::head_rms_norm_forward(side.stream(), slice(fused), h.rows, h.heads, h.head_dim,
                               side.put(weight), kEps, original, rstd);
    return {side.get(fused), side.get(original), side.get(rstd)};
  });
  check_exact(
      "head_rms_norm_backward", c, type, original_type, [&](Side& side) -> std::vector<Array> {
        const View fused = side.put(values_of(c, type, 1));
        const View grad = side.put(Array(DType::f32, {h.head_dim}));
        const Array kept(original_type, {h.rows, width}, random_values(h.rows * width, 5));
        const Array rstd(DType::f32, {h.rows, h.heads}, random_values(h.rows * h.heads, 7, 0.3F));
        ops::head_rms_norm_backward(side.stream(), slice(fused), h.rows, h.heads, h.head_dim,
                                    side.put(kept), side.put(weight), side.put(rstd), grad,
                                    side.space(DType::f32, {(h.rows + 63) / 64, h.head_dim}));
        return {side.get(fused), side.get(grad)};
      });
}

TEST_CASE("RMSNorm of heads has the cpu's bits", "[cuda][norm]") {
  for (const DType type : kTypes) {
    check_heads({66, 3, 32, 8, 16}, type, DType::bf16);
    check_heads({65, 5, 64, 0, 64}, type, DType::f32);
    check_heads({5, 2, 10, 3, 1}, type, type);
    check_heads({3, 1, 16, 8, 8}, type, type);
  }
}

}  // namespace
}  // namespace fp8train::test
