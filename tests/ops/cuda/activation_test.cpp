// Activations against the cpu for every type, shape and alignment: within a neighbour of the type
// and the bounds of ops/support/fast_math.cuh, which fast_math_test.cpp holds. Smoothing is exact:
// scales are powers of two.

#include "ops/pointwise/activation.h"
#include "numeric/with_type.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>

#include "ops/cuda/cuda_test_support.h"
#include "ops/pointwise/smoothing.h"

namespace fp8train::test {
namespace {

/// Numbers over the whole width of the activations, special ones among them.
Array inputs(DType type, const Shape& shape, uint32_t seed) {
  std::vector<float> values = adversarial_values(shape.count(), seed);
  for (size_t i = 3; i < values.size(); i += 5) {
    values[i] *= 30.0F;
  }
  return Array(type, shape, values);
}

/// The largest |got - want| / (a neighbour of want + bound * |factor|); at most 1 passes. What the
/// function's value is multiplied by, its error is.
double worst_of(const Array& got, const Array& want, double bound,
                const std::function<double(int64_t)>& factor) {
  const DType type = want.dtype();
  // Two roundings of each side for fp32, and an error of 2^-15 where an exponential is tiny.
  const double relative = type == DType::f32 ? 0x1p-15 : (type == DType::bf16 ? 0x1p-7 : 0x1p-10);
  double worst = got.count() == want.count() ? 0.0 : INFINITY;
  for (int64_t i = 0; i < want.count(); ++i) {
    const double left = got.get(i);
    const double right = want.get(i);
    if (left == right || (std::isnan(left) && std::isnan(right))) {
      continue;
    }
    const double allowed = relative * std::abs(right) + bound * std::abs(factor(i)) +
                           (type == DType::f16 ? 0x1p-24 : 0x1p-133);
    const double error = std::abs(left - right) / allowed;
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  return worst;
}
constexpr double kFlushed = 0x1p-118;    // values below it may be zero
constexpr double kDerivative = 0x1p-17;  // of cuda, and as much of the cpu

TEST_CASE("swiglu and its gradient agree with the cpu", "[cuda][activation][small]") {
  for (const DType type : FloatTypes::kTypes) {
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
        const auto up = [&, width = width](int64_t i) {
          return gate_up.get(i / width * 2 * width + width + i % width);
        };
        CHECK(worst_of(on_cuda(forward), on_cpu(forward), kFlushed, up) <= 1);
        const auto backward = [&, rows = rows, width = width](Side& side) {
          const View d = side.space(type, {rows, 2 * width}, offset);
          ops::swiglu_backward(side.stream(), side.put(dy, offset), side.put(gate_up, offset), d);
          return side.get(d);
        };
        const auto factor = [&, width = width](int64_t i) {
          const int64_t at = i / (2 * width) * width + i % width;
          return double{dy.get(at)} * (i % (2 * width) < width ? up(at) : 1.0);
        };
        CHECK(worst_of(on_cuda(backward), on_cpu(backward), kDerivative, factor) <= 1);
      }
    }
  }
}

TEST_CASE("swiglu of the codes of silu is the cpu's but for codes that a last bit moves",
          "[cuda][activation][small]") {
  for (const DType type : FloatTypes::kTypes) {
    for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{1, 1},
                                      {3, 5},
                                      {1, 8},
                                      {7, 64},
                                      {5, 2056},
                                      {33, 12},
                                      {9, 24}}) {
      for (const int64_t offset : {0, 3}) {
        INFO(name_of(type) << " " << rows << " x " << width << " from " << offset);
        const Shape shape = {rows, width};
        const Shape both = {rows, 2 * width};
        const Array gate_up(type, both, random_values(both.count(), 1, 2.0F));
        const Array dy(type, shape, random_values(shape.count(), 2));
        const Array scales(DType::f32, {width},
                           std::vector<float>(static_cast<size_t>(width), 0.5F));
        // Codes are 2^-4 apart at most, and further below 2^-6 of 448: one of a hundred may differ.
        const auto compare = [&](const auto& run, const auto& values) {
          const Array got = on_cuda(run);
          const Array want = on_cpu(run);
          const Array plain = on_cpu(values);
          int64_t moved = 0, far = 0, encoded = 0;
          for (int64_t i = 0; i < want.count(); ++i) {
            const double size = std::abs(double{want.get(i)}) + 1e-3;
            const double error = std::abs(double{got.get(i)} - want.get(i));
            moved += error > 0.01 * size ? 1 : 0;
            far += error > 0.13 * size + 0.05 ? 1 : 0;
            encoded += std::abs(double{plain.get(i)} - want.get(i)) > 0.01 * size ? 1 : 0;
          }
          CHECK(moved <= want.count() / 100);
          CHECK(far == 0);
          CHECK((width < 16 || encoded > want.count() / 8));
        };
        const auto forward = [&](bool silu_in_codes, bool smoothed) {
          return [&, silu_in_codes, smoothed](Side& side) {
            const View y = side.space(type, shape, offset);
            const ConstView smoothing =
                smoothed ? ConstView(side.put(scales, offset)) : ConstView{};
            ops::swiglu_forward(side.stream(), side.put(gate_up, offset), y, {}, smoothing,
                                silu_in_codes);
            return side.get(y);
          };
        };
        compare(forward(true, false), forward(false, false));
        compare(forward(true, true), forward(false, true));
        const auto backward = [&](bool silu_in_codes) {
          return [&, silu_in_codes](Side& side) {
            const View d = side.space(type, both, offset);
            ops::swiglu_backward(side.stream(), side.put(dy, offset), side.put(gate_up, offset), d,
                                 {}, silu_in_codes);
            return side.get(d);
          };
        };
        compare(backward(true), backward(false));
      }
    }
  }
}

TEST_CASE("smoothing is exact, and swiglu with it is swiglu times the scales",
          "[cuda][activation][small]") {
  for (const DType type : FloatTypes::kTypes) {
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
        const auto factor = [&, width = width](int64_t i) {
          return double{gate_up.get(i / width * 2 * width + width + i % width)} *
                 smoothing.get(i % width);
        };
        CHECK(worst_of(on_cuda(forward), on_cpu(forward), kFlushed, factor) <= 1);
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

TEST_CASE("gelu and its gradient agree with the cpu", "[cuda][activation][small]") {
  for (const DType type : FloatTypes::kTypes) {
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
        CHECK(worst_of(on_cuda(forward), on_cpu(forward), kFlushed, [](int64_t) { return 1.0; }) <=
              1);
        const auto backward = [&](Side& side) {
          const View dx = side.space(type, {count}, offset);
          ops::gelu_backward(side.stream(), side.put(dy, offset), side.put(x, offset), dx);
          return side.get(dx);
        };
        const auto factor = [&](int64_t i) { return double{dy.get(i)}; };
        CHECK(worst_of(on_cuda(backward), on_cpu(backward), kDerivative, factor) <= 1);
      }
    }
  }
}

}  // namespace
}  // namespace fp8train::test
