// Operations that cast their result: exact. On cuda they write what the operation and then amax or
// quantize write there, and what the cpu writes.

#include "ops/fused_casts.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "numeric/bits.h"
#include "ops/cuda/cuda_test_support.h"

namespace fp8train::test {
namespace {

struct Wanted {
  bool y, codes, transposed, statistics;
};
constexpr Wanted kAmaxOnly = {true, false, false, false};
constexpr Wanted kTurned = {false, true, true, false};
constexpr Wanted kWanted[] = {kAmaxOnly,
                              {false, true, false, true},
                              {false, false, true, false},
                              kTurned,
                              {true, true, true, true}};

struct Case {
  Fused fused;
  DType x_type, y_type, code_type;
  int64_t rows, width;
  int64_t offset = 0;  ///< elements that every array starts beyond an aligned address
  bool adversarial = false;
};

/// Everything that is written.
struct Result {
  Array y, codes, transposed, rstd;
  float scale_inv = 0.0F, amax = 0.25F;
  ops::QuantizeStatistics statistics = {9, 9, 9};
};

Array input(const Case& c, DType type, const Shape& shape, uint32_t seed) {
  return Array(type, shape,
               c.adversarial ? adversarial_values(shape.count(), seed)
                             : random_values(shape.count(), seed, 8.0F));
}

/// In one call, or in two steps.
Result run(Side& side, const Case& c, const Wanted& wanted, bool fused) {
  const Shape shape = result_shape(c.fused, c.rows, c.width);
  const View rstd = side.space(DType::f32, {c.rows});
  const FusedOperands operands = {
      side.put(input(c, c.x_type, input_shape(c.fused, c.rows, c.width), 1), c.offset),
      side.put(input(c, c.x_type, {c.rows, c.width}, 2), c.offset),
      side.put(Array(DType::f32, {c.width}, random_values(c.width, 3))),
      side.put(Array(DType::f32, {c.width}, random_values(c.width, 4))),
      side.space(DType::f32, {c.rows}),
      rstd};
  ops::QuantizeSink sink;
  sink.amax = side.put_value(0.25F);
  if (wanted.codes || wanted.transposed) {
    sink.out.scale = side.put_value(3.5F);
    sink.out.scale_inv = side.put_value(0.0F);
    sink.out.format.dtype = c.code_type;
    sink.out.codes = wanted.codes ? side.space(c.code_type, shape, c.offset) : View{};
    sink.out.codes_transposed =
        wanted.transposed ? side.space(c.code_type, {shape.back(), shape.rows()}, c.offset)
                          : View{};
    sink.statistics =
        wanted.statistics ? side.put_value(ops::QuantizeStatistics{9, 9, 9}) : nullptr;
  }
  View y = side.space(c.y_type, shape, c.offset);
  if (fused) {
    call(c.fused, side.stream(), operands, wanted.y ? y : View{nullptr, c.y_type, shape}, sink);
  } else {
    call(c.fused, side.stream(), operands, y);
    if (sink.out.empty()) {
      ops::amax(side.stream(), y, sink.amax);
    } else {
      ops::quantize(side.stream(), y, sink.out, sink.amax, sink.statistics);
    }
  }
  Result result;
  const auto take = [&](const View& view) { return view.empty() ? Array() : side.get(view); };
  result.y = wanted.y ? side.get(y) : Array();
  result.codes = take(sink.out.codes);
  result.transposed = take(sink.out.codes_transposed);
  result.rstd = is_norm(c.fused) ? side.get(rstd) : Array();
  result.amax = side.get_value(sink.amax);
  if (!std::isnan(result.amax)) {
    result.amax = std::max(result.amax, 0.25F);  // amax overwrites what the others combine with
  }
  result.scale_inv = sink.out.empty() ? 0.0F : side.get_value(sink.out.scale_inv);
  result.statistics =
      sink.statistics == nullptr ? result.statistics : side.get_value(sink.statistics);
  return result;
}

void check_same(const Result& a, const Result& b) {
  CHECK(same_values(a.y, b.y));
  CHECK(a.codes.bytes() == b.codes.bytes());
  CHECK(a.transposed.bytes() == b.transposed.bytes());
  CHECK(same_values(a.rstd, b.rstd));
  CHECK(bits_of(a.scale_inv) == bits_of(b.scale_inv));
  CHECK(bits_of(a.amax) == bits_of(b.amax));
  CHECK(a.statistics.count == b.statistics.count);
  CHECK(a.statistics.saturated == b.statistics.saturated);
  CHECK(a.statistics.underflow == b.statistics.underflow);
}

void check_case(const Case& c, const Wanted& wanted) {
  INFO("operation " << static_cast<int>(c.fused) << ", " << name_of(c.x_type) << " to "
                    << name_of(c.y_type) << " to " << name_of(c.code_type) << ", " << c.rows
                    << " x " << c.width << " from " << c.offset << ", y " << wanted.y << " codes "
                    << wanted.codes << " transposed " << wanted.transposed);
  const Result one = on_cuda([&](Side& side) { return run(side, c, wanted, true); });
  const Result two = on_cuda([&](Side& side) { return run(side, c, wanted, false); });
  check_same(one, two);
  check_same(one, on_cpu([&](Side& side) { return run(side, c, wanted, true); }));
}

TEST_CASE("operations that cast their result: every type", "[cuda][fused][small]") {
  for (const Fused fused : kFused) {
    for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
      check_case({fused, type, type, DType::e5m2, 20, 72}, kTurned);
      check_case({fused, type, type, DType::e4m3, 20, 40, 0, true}, {true, true, true, true});
      check_case({fused, type, type, DType::e4m3, 20, 40, 0, true}, kAmaxOnly);
    }
    if (is_norm(fused)) {
      check_case({fused, DType::f32, DType::bf16, DType::e4m3, 20, 72}, kTurned);
      check_case({fused, DType::f32, DType::f16, DType::e4m3, 20, 72}, kAmaxOnly);
    }
  }
}

TEST_CASE("operations that cast their result: every shape, alignment and output", "[cuda][fused]") {
  for (const Fused fused : kFused) {
    for (const Wanted& wanted : kWanted) {
      // Across the edges of tiles in both directions; odd; not aligned.
      check_case({fused, DType::bf16, DType::bf16, DType::e4m3, 144, 136}, wanted);
      check_case({fused, DType::bf16, DType::bf16, DType::e4m3, 33, 131}, wanted);
      check_case({fused, DType::bf16, DType::bf16, DType::e4m3, 16, 24, 3}, wanted);
      check_case({fused, DType::bf16, DType::bf16, DType::e4m3, 1, 1}, wanted);
    }
  }
}

}  // namespace
}  // namespace fp8train::test
