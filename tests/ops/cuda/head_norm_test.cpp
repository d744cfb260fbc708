// RMSNorm of the heads of a fused projection: within the tolerance of norms.

#include <catch2/catch.hpp>

#include "ops/cuda/norm_checks.h"
#include "ops/norm/norm.h"
#include "ops/norm_cases.h"

namespace fp8train::test {
namespace {

using namespace norms;

/// Heads of a fused projection: `before` elements, then heads * head_dim, then one more.
struct Heads {
  int64_t rows, heads, head_dim, before, after;
};

void check_heads(const Heads& h, DType type, DType original_type) {
  const Case c = {h.rows, h.before + h.heads * h.head_dim + h.after};
  const int64_t width = h.heads * h.head_dim;
  const auto slice = [&](const View& fused) {
    char* data = static_cast<char*>(fused.data) + static_cast<size_t>(h.before) * size_of(type);
    return View{data, type, {h.rows * h.heads, h.head_dim}};
  };
  const Array weight(DType::f32, {h.head_dim}, random_values(h.head_dim, 2));
  check_near("head_rms_norm_forward", c, type, type, [&](Side& side) -> std::vector<Array> {
    const View fused = side.put(values_of(c, type, 1));
    const View original = side.space(type, {h.rows, width});
    const View rstd = side.space(DType::f32, {h.rows, h.heads});
    ops::norm_forward(side.stream(), {.x = slice(fused),
                                      .weight = side.put(weight),
                                      .eps = kNormEps,
                                      .y = slice(fused),
                                      .rstd = rstd,
                                      .rows = {c.n, h.heads},
                                      .original = original});
    return {side.get(fused), side.get(original), side.get(rstd)};
  });
  check_near(
      "head_rms_norm_backward", c, type, original_type, [&](Side& side) -> std::vector<Array> {
        const View fused = side.put(values_of(c, type, 1));
        const View grad = side.put(Array(DType::f32, {h.head_dim}));
        const Array stored(original_type, {h.rows * h.heads, h.head_dim},
                           random_values(h.rows * width, 5));
        const Array rstd(DType::f32, {h.rows, h.heads}, random_values(h.rows * h.heads, 7, 0.3F));
        ops::norm_backward(
            side.stream(),
            {.dy = slice(fused),
             .x = side.put(stored),
             .weight = side.put(weight),
             .rstd = side.put(rstd),
             .dx = slice(fused),
             .weight_grad = grad,
             .scratch = side.space(DType::f32, {ops::norm_partial_rows(h.rows), h.head_dim}),
             .rows = {c.n, h.heads}});
        return {side.get(fused), side.get(grad)};
      });
}

TEST_CASE("RMSNorm of heads is the cpu's", "[cuda][norm]") {
  for (const DType type : FloatTypes::kTypes) {
    check_heads({66, 3, 32, 8, 16}, type, DType::bf16);
    check_heads({65, 5, 64, 0, 64}, type, DType::f32);
    check_heads({5, 2, 10, 3, 1}, type, type);
    check_heads({3, 1, 16, 8, 8}, type, type);
  }
}

}  // namespace
}  // namespace fp8train::test
