// Rotation of heads.

#include <catch2/catch.hpp>
#include <cmath>

#include "ops/attention/attention.h"
#include "ops/reference.h"

namespace fp8train::test {
namespace {

TEST_CASE("rope rotates half-split pairs and back", "[rope]") {
  const int64_t batch = 2;
  const int64_t length = 37;
  const int64_t heads = 3;
  const int64_t offset = 5;
  const int64_t capacity = 40;
  for (const FloatType type : kFloatTypes) {
    for (const int64_t dim : {8, 64, 90}) {
      const int64_t stride = heads * dim + 7;
      Array x(type.dtype, {batch * capacity, stride}, random_values(batch * capacity * stride, 1));
      const Array before = x;
      Array cosines(DType::f32, {64, dim / 2});
      Array sines(DType::f32, {64, dim / 2});
      for (int64_t i = 0; i < cosines.count(); ++i) {
        const double angle =
            double(i / (dim / 2)) * std::pow(10000.0, -2.0 * double(i % (dim / 2)) / double(dim));
        cosines.set(i, float(std::cos(angle)));
        sines.set(i, float(std::sin(angle)));
      }
      std::vector<double> want = doubles(x);
      for (int64_t row = 0; row < batch * capacity; ++row) {
        const int64_t t = row % capacity;
        for (int64_t i = 0; t < length && i < heads * dim / 2; ++i) {
          const int64_t j = i % (dim / 2);
          const int64_t at = row * stride + 3 + i / (dim / 2) * dim + j;
          const double c = cosines.get((offset + t) * dim / 2 + j);
          const double s = sines.get((offset + t) * dim / 2 + j);
          const double a = before.get(at);
          const double b = before.get(at + dim / 2);
          want[size_t(at)] = a * c - b * s;
          want[size_t(at + dim / 2)] = b * c + a * s;
        }
      }
      const auto view = heads_of(x, 3, stride, capacity);
      ops::rope(cpu_stream(), {.x = view,
                               .batch = batch,
                               .length = length,
                               .heads = heads,
                               .head_dim = dim,
                               .cosines = cosines,
                               .sines = sines,
                               .position_offset = offset,
                               .inverse = false});
      // Two products and a sum of values up to 5: three roundings of 2^-24 each.
      CHECK(worst_error(x, want, type.rounding, 0x1p-20) <= 1);
      ops::rope(cpu_stream(), {.x = view,
                               .batch = batch,
                               .length = length,
                               .heads = heads,
                               .head_dim = dim,
                               .cosines = cosines,
                               .sines = sines,
                               .position_offset = offset,
                               .inverse = true});
      // There and back: each way rounds once to the type, at up to 7.
      CHECK(worst_error(x, doubles(before), 0, 0x1p-20 + 16 * type.rounding) <= 1);
    }
  }
}

TEST_CASE("rope has the same bits at every level and thread count", "[rope]") {
  for (const FloatType type : kFloatTypes) {
    CHECK(same_everywhere([&](const ops::OpTable& table) {
      Array x(type.dtype, {100, 4 * 66}, random_values(100 * 4 * 66, 1));
      Array cosines(DType::f32, {60, 33}, random_values(60 * 33, 2));
      Array sines(DType::f32, {60, 33}, random_values(60 * 33, 3));
      table.rope(cpu_stream(), {.x = heads_of(x, 0, 4 * 66, 50),
                                .batch = 2,
                                .length = 50,
                                .heads = 4,
                                .head_dim = 66,
                                .cosines = cosines,
                                .sines = sines,
                                .position_offset = 10,
                                .inverse = false});
      Bits bits;
      bits.add(x);
      return bits;
    }));
  }
}

}  // namespace
}  // namespace fp8train::test
