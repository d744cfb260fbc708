// Element-wise kernels: exact, since the arithmetic of an element is the same code as the cpu's and
// sums have the same order.

#include "ops/pointwise/elementwise.h"
#include "numeric/with_type.h"

#include <catch2/catch.hpp>

#include "ops/cuda/cuda_test_support.h"

namespace fp8train::test {
namespace {

constexpr int64_t kCounts[] = {1, 7, 8, 255, 1024, 4099};

TEST_CASE("cast between every pair of types is exact", "[cuda][elementwise]") {
  for (const DType from : FloatTypes::kTypes) {
    for (const DType to : FloatTypes::kTypes) {
      for (const int64_t count : kCounts) {
        for (const int64_t offset : {0, 1}) {
          INFO(name_of(from) << " to " << name_of(to) << ", " << count << " from " << offset);
          const Array x(from, {count}, adversarial_values(count, 3));
          const auto run = [&](Side& side) {
            const View y = side.space(to, {count}, offset);
            ops::cast(side.stream(), side.put(x, offset), y);
            return side.get(y);
          };
          CHECK(same_values(on_cuda(run), on_cpu(run)));
        }
      }
    }
  }
}

TEST_CASE("add of mixed types is exact, in place too", "[cuda][elementwise]") {
  for (const DType a_type : FloatTypes::kTypes) {
    for (const DType b_type : FloatTypes::kTypes) {
      for (const int64_t count : kCounts) {
        INFO(name_of(a_type) << " + " << name_of(b_type) << ", " << count);
        const Array a(a_type, {count}, adversarial_values(count, 1));
        const Array b(b_type, {count}, adversarial_values(count, 2));
        const auto run = [&](Side& side) {
          const View sum = side.put(a);
          ops::add(side.stream(), sum, side.put(b), sum);
          return side.get(sum);
        };
        CHECK(same_values(on_cuda(run), on_cpu(run)));
      }
    }
  }
}

TEST_CASE("add_bias and its gradient are exact", "[cuda][elementwise][small]") {
  for (const DType type : FloatTypes::kTypes) {
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{1, 5}, {64, 48}, {130, 300}}) {
      INFO(name_of(type) << " " << rows << " x " << columns);
      const Array y(type, {rows, columns}, random_values(rows * columns, 1));
      const Array bias(DType::f32, {columns}, random_values(columns, 2));
      const auto add = [&, rows = rows, columns = columns](Side& side) {
        const View sum = side.put(y);
        ops::add_bias(side.stream(), sum, side.put(bias));
        return side.get(sum);
      };
      CHECK(same_values(on_cuda(add), on_cpu(add)));
      const auto gradient = [&, rows = rows, columns = columns](Side& side) {
        const View grad = side.put(bias);
        ops::bias_backward(side.stream(), side.put(y), grad,
                           side.space(DType::f32, {(rows + 63) / 64, columns}));
        return side.get(grad);
      };
      CHECK(same_values(on_cuda(gradient), on_cpu(gradient)));
      const auto overwritten = [&, rows = rows, columns = columns](Side& side) {
        const View grad = side.space(DType::f32, {columns});
        ops::bias_backward(side.stream(), side.put(y), grad,
                           side.space(DType::f32, {(rows + 63) / 64, columns}), true);
        return side.get(grad);
      };
      CHECK(same_values(on_cuda(overwritten), on_cpu(overwritten)));
    }
  }
}

TEST_CASE("add_columns is exact", "[cuda][elementwise][small]") {
  for (const DType from : FloatTypes::kTypes) {
    for (const DType to : FloatTypes::kTypes) {
      INFO(name_of(from) << " " << name_of(to));
      const Array x(from, {65, 300}, random_values(65 * 300, 1));
      const Array y(to, {65, 48}, random_values(65 * 48, 2));
      const auto add = [&](Side& side) {
        const View sum = side.put(y);
        ops::add_columns(side.stream(), {.x = side.put(x),
                                         .y = sum,
                                         .x_first = 260,
                                         .y_first = 7,
                                         .columns = 40,
                                         .factor = 0.7F,
                                         .overwrites = from == to});
        return side.get(sum);
      };
      CHECK(same_values(on_cuda(add), on_cpu(add)));
    }
  }
}

TEST_CASE("fill and scale_by are exact", "[cuda][elementwise][small]") {
  for (const int64_t count : kCounts) {
    const auto run = [&](Side& side) {
      const View y = side.space(DType::f32, {count}, 1);
      ops::fill(side.stream(), y, 1.7F);
      ops::scale_by(side.stream(), y, side.put_value(0.3F));
      return side.get(y);
    };
    CHECK(same_values(on_cuda(run), on_cpu(run)));
  }
}

}  // namespace
}  // namespace fp8train::test
