#include "ops/pointwise/elementwise.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "ops/op_test_support.h"

using namespace fp8train;
using namespace fp8train::test;

namespace {

constexpr int64_t kCounts[] = {1, 7, 33, 4097, 20001};

/// The values that a conversion treats specially, in front of random ones.
std::vector<float> values_with_specials(int64_t count, uint32_t seed) {
  std::vector<float> values = random_values(count, seed);
  const float specials[] = {0.0F,   -0.0F,  INFINITY, -INFINITY, NAN,    65504.0F, 65520.0F,
                            -1e30F, 1e-45F, 6e-8F,    3e-8F,     1e-40F, 1.0F,     -2.0F};
  for (size_t i = 0; i < values.size() && i < std::size(specials); ++i) {
    values[i] = specials[i];
  }
  return values;
}

}  // namespace

TEST_CASE("cast rounds as the scalar conversions do, between all float types", "[ops]") {
  for (const FloatType& from : kFloatTypes) {
    for (const FloatType& to : kFloatTypes) {
      for (const int64_t count : kCounts) {
        Array x(from.dtype, {count}, values_with_specials(count, 1));
        Array y(to.dtype, {count});
        ops::cast(cpu_stream(), x, y);
        const Array expected(to.dtype, {count}, x.values());
        REQUIRE(y.bytes() == expected.bytes());
        REQUIRE(same_everywhere([&](const ops::OpTable& table) {
          Array out(to.dtype, {count});
          table.cast(cpu_stream(), x, out);
          Bits bits;
          bits.add(out);
          return bits;
        }));
      }
    }
  }
}

TEST_CASE("add rounds the fp32 sum once, also in place", "[ops]") {
  for (const FloatType& a_type : kFloatTypes) {
    for (const FloatType& b_type : kFloatTypes) {
      for (const FloatType& y_type : kFloatTypes) {
        const int64_t count = 20001;
        Array a(a_type.dtype, {count}, random_values(count, 2));
        Array b(b_type.dtype, {count}, random_values(count, 3));
        std::vector<float> sums;
        for (int64_t i = 0; i < count; ++i) {
          sums.push_back(a.get(i) + b.get(i));
        }
        const Array expected(y_type.dtype, {count}, sums);
        Array y(y_type.dtype, {count});
        ops::add(cpu_stream(), a, b, y);
        REQUIRE(y.bytes() == expected.bytes());
        if (a_type.dtype == y_type.dtype) {
          ops::add(cpu_stream(), a, b, a);
          REQUIRE(a.bytes() == expected.bytes());
        }
      }
    }
  }
}

TEST_CASE("add_bias adds one row to all rows", "[ops]") {
  const int64_t rows = 37;
  const int64_t columns = 531;
  for (const FloatType& type : kFloatTypes) {
    Array y(type.dtype, {rows, columns}, random_values(rows * columns, 4));
    Array bias(DType::f32, {columns}, random_values(columns, 5));
    std::vector<float> sums;
    for (int64_t i = 0; i < rows * columns; ++i) {
      sums.push_back(y.get(i) + bias.get(i % columns));
    }
    const Array expected(type.dtype, {rows, columns}, sums);
    ops::add_bias(cpu_stream(), y, bias);
    REQUIRE(y.bytes() == expected.bytes());
  }
}

TEST_CASE("add_columns adds some columns of a matrix to some of another", "[ops]") {
  const int64_t rows = 41;
  for (const FloatType& from : kFloatTypes) {
    for (const FloatType& to : kFloatTypes) {
      const bool overwrites = from.dtype == to.dtype;
      Array x(from.dtype, {rows, 70}, random_values(rows * 70, 8));
      const Array before(to.dtype, {rows, 95}, random_values(rows * 95, 9));
      std::vector<float> sums = before.values();
      for (int64_t i = 0; i < rows * 33; ++i) {
        float& sum = sums[static_cast<size_t>(i / 33 * 95 + 21 + i % 33)];
        sum = (overwrites ? 0.0F : sum) + 1.5F * x.get(i / 33 * 70 + 30 + i % 33);
      }
      const Array expected(to.dtype, {rows, 95}, sums);
      const auto run = [&](const ops::OpTable& table) {
        Array y = before;
        table.add_columns(cpu_stream(), {.x = x,
                                         .y = y,
                                         .x_first = 30,
                                         .y_first = 21,
                                         .columns = 33,
                                         .factor = 1.5F,
                                         .overwrites = overwrites});
        return y;
      };
      REQUIRE(run(*cpu_tables().back()).bytes() == expected.bytes());
      REQUIRE(same_everywhere([&](const ops::OpTable& table) {
        Bits bits;
        bits.add(run(table));
        return bits;
      }));
    }
  }
}

TEST_CASE("bias_backward adds the sum over rows, in an order of its own", "[ops]") {
  const int64_t columns = 133;
  for (const FloatType& type : kFloatTypes) {
    for (const int64_t rows : {int64_t{1}, int64_t{64}, int64_t{65}, int64_t{300}}) {
      Array dy(type.dtype, {rows, columns}, random_values(rows * columns, 6));
      const std::vector<float> before = random_values(columns, 7);
      const auto run = [&](const ops::OpTable& table) {
        Array grad(DType::f32, {columns}, before);
        Array scratch(DType::f32, {(rows + 63) / 64, columns});
        table.bias_backward(cpu_stream(), dy, grad, scratch, false);
        return grad;
      };
      Array grad = run(*cpu_tables().back());
      // The order that the header states, so the result is exact.
      for (int64_t c = 0; c < columns; ++c) {
        float total = before[static_cast<size_t>(c)];
        for (int64_t begin = 0; begin < rows; begin += 64) {
          float sum = 0.0F;
          for (int64_t r = begin; r < std::min(rows, begin + 64); ++r) {
            sum += dy.get(r * columns + c);
          }
          total += sum;
        }
        REQUIRE(grad.get(c) == total);
      }
      Array zero(DType::f32, {columns});
      Array anything(DType::f32, {columns}, std::vector<float>(columns, std::nanf("")));
      Array scratch(DType::f32, {(rows + 63) / 64, columns});
      ops::bias_backward(cpu_stream(), dy, zero, scratch);
      ops::bias_backward(cpu_stream(), dy, anything, scratch, true);
      REQUIRE(anything.bytes() == zero.bytes());
      REQUIRE(same_everywhere([&](const ops::OpTable& table) {
        Bits bits;
        bits.add(run(table));
        return bits;
      }));
    }
  }
}

TEST_CASE("fill and scale_by touch every element", "[ops]") {
  for (const int64_t count : kCounts) {
    Array y(DType::f32, {count});
    ops::fill(cpu_stream(), y, 1.5F);
    const float factor = -3.0F;
    ops::scale_by(cpu_stream(), y, &factor);
    REQUIRE(
        y.bytes() ==
        Array(DType::f32, {count}, std::vector<float>(static_cast<size_t>(count), -4.5F)).bytes());
  }
}

TEST_CASE("element-wise operations refuse views that do not fit", "[ops]") {
  Array four(DType::f32, {4});
  Array five(DType::f32, {5});
  Array codes(DType::e4m3, {4});
  CHECK_THROWS_AS(ops::cast(cpu_stream(), four, five), InternalError);
  CHECK_THROWS_AS(ops::cast(cpu_stream(), four, codes), InternalError);
  CHECK_THROWS_AS(ops::add(cpu_stream(), four, five, four), InternalError);
  CHECK_THROWS_AS(ops::add_bias(cpu_stream(), four, five), InternalError);
  CHECK_THROWS_AS(ops::fill(cpu_stream(), codes, 0.0F), InternalError);
}
