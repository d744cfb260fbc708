// Sums in pairs, against their definition.

#include <catch2/catch.hpp>

#include "base/error.h"
#include "ops/exchange/wire.h"
#include "ops/op_test_support.h"
#include "ops/support/in_pairs.h"

namespace fp8train::test {
namespace {

/// The sum of `count` parts, a power of two, as far as they exist; halves are added.
template <typename T>
T sum_of(const std::vector<T>& parts, size_t first, size_t count) {
  if (count == 1 || first + count / 2 >= parts.size()) {
    return count == 1 ? parts[first] : sum_of(parts, first, count / 2);
  }
  return sum_of(parts, first, count / 2) + sum_of(parts, first + count / 2, count / 2);
}

TEST_CASE("combine_ranks adds in pairs", "[wire]") {
  for (const DType from : {DType::f32, DType::bf16}) {
    for (const FloatType& to : kFloatTypes) {
      for (const int64_t ranks : {1, 2, 3, 4, 5, 6, 7, 8, 13, 64, 200, 256}) {
        const int64_t count = 131;
        CAPTURE(name_of(from), name_of(to.dtype), ranks);
        Array parts(from, {ranks, count}, random_values(ranks * count, 4));
        Array expected(to.dtype, {count});
        for (int64_t i = 0; i < count; ++i) {
          std::vector<float> values;
          for (int64_t rank = 0; rank < ranks; ++rank) {
            values.push_back(parts.get(rank * count + i));
          }
          expected.set(i, sum_of(values, 0, 256));
        }
        Array y(to.dtype, {count});
        ops::combine_ranks(cpu_stream(), parts, ops::Combine::pairs, y);
        REQUIRE(y.bytes() == expected.bytes());
      }
    }
  }
  std::vector<double> doubles = {0x1p53, 1, 1, -0x1p53, 0.5, 0x1p53, 1, 1};
  double sum = 0;
  ops::combine_ranks(cpu_stream(), ConstView{doubles.data(), DType::f64, {8, 1}},
                     ops::Combine::pairs, View{&sum, DType::f64, {1}});
  CHECK(sum == sum_of(doubles, 0, 8));
}

TEST_CASE("parts of a sum in pairs may be added before", "[wire]") {
  Array parts(DType::f32, {8, 50}, random_values(400, 9));
  Array whole(DType::f32, {50});
  ops::combine_ranks(cpu_stream(), parts, ops::Combine::pairs, whole);
  for (const int64_t ranks : {2, 4}) {
    Array sums(DType::f32, {ranks, 50});
    for (int64_t rank = 0; rank < ranks; ++rank) {
      ops::combine_ranks(cpu_stream(), rows_of(parts.view(), rank * 8 / ranks, 8 / ranks),
                         ops::Combine::pairs, rows_of(sums.view(), rank, 1));
    }
    Array y(DType::f32, {50});
    ops::combine_ranks(cpu_stream(), sums, ops::Combine::pairs, y);
    CHECK(y.bytes() == whole.bytes());
  }
}

TEST_CASE("sums in pairs have the same bits at every level and thread count", "[wire]") {
  CHECK(same_everywhere([](const ops::OpTable& table) {
    Array parts(DType::bf16, {5, 40001}, random_values(5 * 40001, 3));
    Array y(DType::f32, {40001});
    table.combine_ranks(cpu_stream(), parts, ops::Combine::pairs, y);
    Bits bits;
    bits.add(y);
    return bits;
  }));
}

TEST_CASE("what cannot be added in pairs is refused", "[wire]") {
  Array parts(DType::f32, {ops::kMaxPaired + 1, 1});
  Array y(DType::f32, {1});
  CHECK_THROWS_WITH(ops::combine_ranks(cpu_stream(), parts, ops::Combine::pairs, y),
                    Catch::Contains("too many"));
  Array narrow(DType::bf16, {2, 1});
  CHECK_THROWS_AS(ops::combine_ranks(cpu_stream(), narrow, ops::Combine::sum, y), InternalError);
}

}  // namespace
}  // namespace fp8train::test
