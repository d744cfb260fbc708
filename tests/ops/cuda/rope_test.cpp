// Rotary embedding and the key-value cache: exact.

#include <catch2/catch.hpp>
#include <cmath>

#include "ops/attention/attention.h"
#include "ops/attention/kv_cache.h"
#include "ops/cuda/cuda_test_support.h"

namespace fp8train::test {
namespace {

constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16};

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
  for (const DType type : kTypes) {
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

TEST_CASE("append_to_cache copies rows to where they belong", "[cuda][kv_cache][small]") {
  for (const DType type : kTypes) {
    for (const int64_t width : {int64_t{3}, int64_t{8}, int64_t{64}}) {
      for (const int64_t past : {int64_t{0}, int64_t{1}, int64_t{4}}) {
        for (const int64_t before : {int64_t{0}, int64_t{5}, int64_t{8}}) {
          INFO(name_of(type) << ", width " << width << " after " << past << ", from " << before);
          constexpr int64_t kBatch = 2, kLength = 3, kCapacity = 7, kRowCapacity = 4;
          const int64_t stride = before + width + 8;
          const Shape shape = {kBatch * kRowCapacity, stride};
          const Array rows(type, shape, adversarial_values(shape.count(), 1));
          const Shape cache_shape = {kBatch, kCapacity, width};
          const Array cache(type, cache_shape, random_values(cache_shape.count(), 2));
          const auto run = [&](Side& side) {
            const View from = side.put(rows);
            const View to = side.put(cache);
            char* data =
                static_cast<char*>(from.data) + static_cast<size_t>(before) * size_of(type);
            const ops::HeadsView slice =
                ops::append_to_cache(side.stream(), {.rows = {data, type, stride, kRowCapacity},
                                                     .cache = to,
                                                     .batch = kBatch,
                                                     .length = kLength,
                                                     .width = width,
                                                     .past = past});
            CHECK(slice.data == to.data);
            CHECK(slice.dtype == type);
            CHECK(slice.row_stride == width);
            CHECK(slice.length_capacity == kCapacity);
            return side.get(to);
          };
          const Array cuda = on_cuda(run);
          CHECK(cuda.bytes() == on_cpu(run).bytes());
          CHECK(cuda.bytes() != cache.bytes());
        }
      }
    }
  }
}

}  // namespace
}  // namespace fp8train::test
