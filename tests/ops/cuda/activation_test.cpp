// Activations: exact, since an element's arithmetic is the same code as the cpu's.

#include "ops/activation.h"

#include <catch2/catch.hpp>

#include "ops/cuda/cuda_test_support.h"
#include "ops/smoothing.h"

namespace fp8train::test {
namespace {

constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16};

/// Numbers over the whole width of the activations, special ones among them.
Array inputs(DType type, const Shape& shape, uint32_t seed) {
  std::vector<float> values = adversarial_values(shape.count(), seed);
  for (size_t i = 3; i < values.size(); i += 5) {
    values[i] *= 30.0F;
  }
  return Array(type, shape, values);
}

TEST_CASE("swiglu and its gradient are exact", "[cuda][activation][small]") {
  for (const DType type : kTypes) {
    for (const auto& [rows, width] :
         {std::pair<int64_t, int64_t>{1, 1}, {3, 5}, {1, 8}, {7, 64}, {5, 2056}, {33, 12}}) {
      for (const int64_t offset : {0, 3}) {
        INFO(name_of(type) << " " << rows << " x " << width << " from " << offset);
        const Array gate_up = inputs(type, {rows, 2 * width}, 1);
        const Array dy = inputs(type, {rows, width}, 2);
        const auto forward = [&, rows = rows, width = width](Side& side) {
          const View y = side.space(type, {rows, width}, offset);
          ops::swiglu_forward(side.stream(), side.put(gate_up, offset), y);
          return side.get(y);
        };
        CHECK(same_values(on_cuda(forward), on_cpu(forward)));
        const auto backward = [&, rows = rows, width = width](Side& side) {
          const View d = side.space(type, {rows, 2 * width}, offset);
          ops::swiglu_backward(side.stream(), side.put(dy, offset), side.put(gate_up, offset), d);
          return side.get(d);
        };
        CHECK(same_values(on_cuda(backward), on_cpu(backward)));
      }
    }
  }
}

TEST_CASE("smoothing and what it does to swiglu are exact", "[cuda][activation][small]") {
  for (const DType type : kTypes) {
    for (const auto& [rows, width] :
         {std::pair<int64_t, int64_t>{1, 1}, {3, 5}, {7, 64}, {5, 2056}, {33, 12}, {70, 136}}) {
      for (const int64_t offset : {0, 3}) {
        INFO(name_of(type) << " " << rows << " x " << width << " from " << offset);
        const Array gate_up = inputs(type, {rows, 2 * width}, 1);
        const Array x = inputs(DType::f32, {rows, width}, 2);
        const auto scale = [&, rows = rows, width = width](Side& side) {
          const View found = side.space(DType::f32, {width}, offset);
          ops::find_smoothing(side.stream(), side.put(gate_up, offset), found);
          return side.get(found);
        };
        const Array smoothing = on_cpu(scale);
        CHECK(same_values(on_cuda(scale), smoothing));
        const auto forward = [&, rows = rows, width = width](Side& side) {
          const View y = side.space(type, {rows, width}, offset);
          ops::swiglu_forward(side.stream(), side.put(gate_up, offset), y, {},
                              side.put(smoothing, offset));
          return side.get(y);
        };
        CHECK(same_values(on_cuda(forward), on_cpu(forward)));
        for (const bool add : {false, true}) {
          const auto divide = [&](Side& side) {
            const View y = side.put(x, offset);
            ops::divide_columns(side.stream(), side.put(x, offset), side.put(smoothing, offset), y,
                                add);
            return side.get(y);
          };
          CHECK(same_values(on_cuda(divide), on_cpu(divide)));
        }
      }
    }
  }
}

TEST_CASE("gelu and its gradient are exact", "[cuda][activation][small]") {
  for (const DType type : kTypes) {
    for (const int64_t count : {1, 7, 8, 2051, 4096}) {
      for (const int64_t offset : {0, 1}) {
        INFO(name_of(type) << " " << count << " from " << offset);
        const Array x = inputs(type, {count}, 3);
        const Array dy = inputs(type, {count}, 4);
        const auto forward = [&](Side& side) {
          const View y = side.space(type, {count}, offset);
          ops::gelu_forward(side.stream(), side.put(x, offset), y);
          return side.get(y);
        };
        CHECK(same_values(on_cuda(forward), on_cpu(forward)));
        const auto backward = [&](Side& side) {
          const View dx = side.space(type, {count}, offset);
          ops::gelu_backward(side.stream(), side.put(dy, offset), side.put(x, offset), dx);
          return side.get(dx);
        };
        CHECK(same_values(on_cuda(backward), on_cpu(backward)));
      }
    }
  }
}

}  // namespace
}  // namespace fp8train::test
