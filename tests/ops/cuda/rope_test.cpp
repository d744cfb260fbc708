// Rotary embedding and the key-value cache: exact.

#include <catch2/catch.hpp>
#include <cmath>

#include "numeric/with_type.h"
#include "ops/attention/attention.h"
#include "ops/attention/copy_rows.h"
#include "ops/cuda/cuda_test_support.h"

namespace fp8train::test {
namespace {

/// Heads in wider rows: `before` elements, then heads * head_dim, then `after`.
struct Case {
  int64_t batch, length, capacity, heads, head_dim, before, after, offset;
  bool inverse;

  int64_t width() const { return before + heads * head_dim + after; }
};

void check_rope(const Case& c, DType type) {
  INFO(name_of(type) << ", " << c.heads << " heads of " << c.head_dim << ", " << c.inverse);
  const int64_t half = c.head_dim / 2;
  const Shape fused_shape = {c.batch * c.capacity, c.width()};
  const Array fused(type, fused_shape, adversarial_values(fused_shape.count(), 1));
  const Array cosines(DType::f32, {c.length + 3, half}, random_values((c.length + 3) * half, 2));
  const Array sines(DType::f32, {c.length + 3, half}, random_values((c.length + 3) * half, 3));
  const auto run = [&](Side& side) {
    const View x = side.put(fused, c.offset);
    char* data = static_cast<char*>(x.data) + static_cast<size_t>(c.before) * size_of(type);
    ops::rope(side.stream(), {.x = {data, type, c.width(), c.capacity},
                              .batch = c.batch,
                              .length = c.length,
                              .heads = c.heads,
                              .head_dim = c.head_dim,
                              .cosines = side.put(cosines),
                              .sines = side.put(sines),
                              .position_offset = 2,
                              .inverse = c.inverse});
    return side.get(x);
  };
  const Array cuda = on_cuda(run);
  CHECK(same_values(cuda, on_cpu(run)));
  CHECK_FALSE(same_values(cuda, fused));
}

TEST_CASE("rope is exact and touches nothing but its heads", "[cuda][rope][small]") {
  for (const DType type : FloatTypes::kTypes) {
    for (const bool inverse : {false, true}) {
      check_rope({2, 5, 5, 3, 32, 16, 64, 0, inverse}, type);
      check_rope({2, 3, 7, 2, 64, 0, 8, 0, inverse}, type);
      check_rope({1, 4, 4, 3, 20, 0, 0, 0, inverse}, type);
      check_rope({3, 2, 2, 1, 2, 1, 0, 0, inverse}, type);
      check_rope({1, 3, 3, 2, 16, 8, 8, 3, inverse}, type);
      check_rope({1, 2, 2, 40, 128, 0, 256, 0, inverse}, type);
    }
  }
}

TEST_CASE("copy_rows copies rows between orders", "[cuda][copy_rows][small]") {
  for (const DType type : FloatTypes::kTypes) {
    for (const int64_t width : {int64_t{3}, int64_t{8}, int64_t{64}}) {
      for (const int64_t before : {int64_t{0}, int64_t{5}, int64_t{8}}) {
        INFO(name_of(type) << ", width " << width << ", from " << before);
        constexpr int64_t kOuter = 2, kMiddle = 3, kInner = 4;
        constexpr int64_t kRows = kOuter * kMiddle * kInner;
        const int64_t stride = before + width + 8;
        const Array rows(type, {kRows, stride}, adversarial_values(kRows * stride, 1));
        const Array other(type, {kRows, stride}, random_values(kRows * stride, 2));
        const auto run = [&](Side& side) {
          const View from = side.put(rows);
          const View to = side.put(other);
          const auto at = [&](const View& view, int64_t element) {
            return static_cast<char*>(view.data) + static_cast<size_t>(element) * size_of(type);
          };
          // The order of the outer index is turned around, and inner rows are apart.
          ops::copy_rows(side.stream(),
                         {.from = at(from, before),
                          .to = at(to, (kOuter - 1) * stride),
                          .dtype = type,
                          .extents = {kOuter, kMiddle, kInner},
                          .width = width,
                          .from_strides = {kMiddle * kInner * stride, kInner * stride, stride},
                          .to_strides = {-stride, kOuter * kInner * stride, kOuter * stride}});
          return side.get(to);
        };
        const Array cuda = on_cuda(run);
        CHECK(cuda.bytes() == on_cpu(run).bytes());
        CHECK(cuda.bytes() != other.bytes());
      }
    }
  }
}

}  // namespace
}  // namespace fp8train::test
