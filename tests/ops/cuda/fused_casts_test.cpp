// Operations that cast their result: on cuda they write exactly what the operation and then amax or
// quantize write there. Results of norms and activations agree with the cpu's by a tolerance
// (norm_test.cpp, activation_test.cpp): of norms, what is written is the cpu's up to that; of
// activations, the casts are those that the cpu makes of the same values.

#include "ops/fused_casts.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "numeric/bits.h"
#include "numeric/with_type.h"
#include "ops/cuda/cuda_test_support.h"
#include "support/sanitized.h"

namespace fp8train::test {
namespace {

struct Wanted {
  bool y, codes, transposed, statistics;
};
constexpr Wanted kAmaxOnly = {true, false, false, false};
constexpr Wanted kColumnwise = {false, true, true, false};
constexpr Wanted kWanted[] = {kAmaxOnly,
                              {false, true, false, true},
                              {false, false, true, false},
                              kColumnwise,
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
  Array values;  ///< y, wanted or not, of the two steps
  float scale_inv = 0.0F, amax = 0.25F;
  ops::QuantizeStatistics statistics = {9, 9, 9};
};

Array input(const Case& c, DType type, const Shape& shape, uint32_t seed) {
  return Array(type, shape,
               c.adversarial ? adversarial_values(shape.count(), seed)
                             : random_values(shape.count(), seed, 8.0F));
}

ops::QuantizeSink make_sink(Side& side, const Case& c, const Wanted& wanted) {
  const Shape shape = result_shape(c.fused, c.rows, c.width);
  ops::QuantizeSink sink;
  sink.amax = side.put_value(0.25F);
  if (wanted.codes || wanted.transposed) {
    set_tensor_cast(sink.out, plain(c.code_type), side.put_value(3.5F), side.put_value(0.0F));
    sink.out.rowwise.codes = wanted.codes ? side.space(c.code_type, shape, c.offset) : View{};
    sink.out.columnwise.codes =
        wanted.transposed ? side.space(c.code_type, {shape.back(), shape.rows()}, c.offset)
                          : View{};
    sink.statistics =
        wanted.statistics ? side.put_value(ops::QuantizeStatistics{9, 9, 9}) : nullptr;
  }
  return sink;
}

void cast(Side& side, const View& y, const ops::QuantizeSink& sink) {
  if (sink.out.empty()) {
    ops::amax(side.stream(), y, sink.amax);
  } else {
    ops::quantize(side.stream(), y, sink.out, sink.amax, sink.statistics);
  }
}

Result result_of(Side& side, const ops::QuantizeSink& sink) {
  Result result;
  const auto take = [&](const View& view) { return view.empty() ? Array() : side.get(view); };
  result.codes = take(sink.out.rowwise.codes);
  result.transposed = take(sink.out.columnwise.codes);
  result.amax = side.get_value(sink.amax);
  if (!std::isnan(result.amax)) {
    result.amax = std::max(result.amax, 0.25F);  // amax overwrites what the others combine with
  }
  result.scale_inv = sink.out.empty() ? 0.0F : side.get_value(sink.out.either().tensor_scale);
  result.statistics =
      sink.statistics == nullptr ? result.statistics : side.get_value(sink.statistics);
  return result;
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
  const ops::QuantizeSink sink = make_sink(side, c, wanted);
  View y = side.space(c.y_type, shape, c.offset);
  if (fused) {
    call(c.fused, side.stream(), operands, wanted.y ? y : View{nullptr, c.y_type, shape}, sink);
  } else {
    call(c.fused, side.stream(), operands, y);
    cast(side, y, sink);
  }
  Result result = result_of(side, sink);
  result.values = fused ? Array() : side.get(y);
  result.y = wanted.y ? side.get(y) : Array();
  result.rstd = is_norm(c.fused) ? side.get(rstd) : Array();
  return result;
}

/// What the cpu's amax or quantize makes of the values of two steps.
Result cast_on_cpu(const Case& c, const Wanted& wanted, const Result& two) {
  return on_cpu([&](Side& side) {
    const ops::QuantizeSink sink = make_sink(side, c, wanted);
    cast(side, side.put(two.values), sink);
    Result result = result_of(side, sink);
    result.y = two.y;
    return result;
  });
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

/// Of norms: codes of neighbouring results may be neighbours.
void check_near(const Case& c, const Result& a, const Result& b) {
  const double relative = c.y_type == DType::bf16  ? 0x1p-7
                          : c.y_type == DType::f16 ? 0x1p-10
                                                   : 0x1p-20;
  CHECK(worst_difference(a.y, b.y, relative, 0x1p-17) <= 1);
  CHECK(worst_difference(a.rstd, b.rstd, 0x1p-20, 0) <= 1);
  const double step = c.code_type == DType::e4m3 ? 0x1p-3 : 0x1p-2;
  CHECK(worst_difference(a.codes, b.codes, step, 0x1p-9) <= 1);
  CHECK(worst_difference(a.transposed, b.transposed, step, 0x1p-9) <= 1);
  CHECK(bits_of(a.scale_inv) == bits_of(b.scale_inv));
  const Array amax_a(DType::f32, {1}, {a.amax});
  const Array amax_b(DType::f32, {1}, {b.amax});
  CHECK(worst_difference(amax_a, amax_b, relative, 0) <= 1);
  CHECK(a.statistics.count == b.statistics.count);
}

void check_case(const Case& c, const Wanted& wanted) {
  INFO("operation " << static_cast<int>(c.fused) << ", " << name_of(c.x_type) << " to "
                    << name_of(c.y_type) << " to " << name_of(c.code_type) << ", " << c.rows
                    << " x " << c.width << " from " << c.offset << ", y " << wanted.y << " codes "
                    << wanted.codes << " transposed " << wanted.transposed);
  const Result one = on_cuda([&](Side& side) { return run(side, c, wanted, true); });
  const Result two = on_cuda([&](Side& side) { return run(side, c, wanted, false); });
  check_same(one, two);
  if (is_norm(c.fused)) {
    check_near(c, one, on_cpu([&](Side& side) { return run(side, c, wanted, true); }));
  } else {
    check_same(one, cast_on_cpu(c, wanted, two));
  }
}

TEST_CASE("operations that cast their result: every type", "[cuda][fused][small]") {
  for (const Fused fused : kFused) {
    for (const DType type : FloatTypes::kTypes) {
      check_case({fused, type, type, DType::e5m2, 20, 72}, kColumnwise);
      check_case({fused, type, type, DType::e4m3, 20, 40, 0, true}, {true, true, true, true});
      check_case({fused, type, type, DType::e4m3, 20, 40, 0, true}, kAmaxOnly);
    }
    if (is_norm(fused)) {
      // In one pass: codes and their transpose; codes alone, of any rows; wide rows.
      check_case({fused, DType::bf16, DType::bf16, DType::e5m2, 32, 40, 0, true}, kColumnwise);
      check_case({fused, DType::bf16, DType::bf16, DType::e4m3, 21, 8}, {true, true, false, false});
      check_case({fused, DType::bf16, DType::bf16, DType::e4m3, 16, 1064}, kColumnwise);
      check_case({fused, DType::f32, DType::bf16, DType::e4m3, 20, 72}, kColumnwise);
      check_case({fused, DType::f32, DType::f16, DType::e4m3, 20, 72}, kAmaxOnly);
    }
  }
}

TEST_CASE("operations that cast their result: every shape, alignment and output", "[cuda][fused]") {
  size_t index = 0;
  for (const Fused fused : kFused) {
    for (const Wanted& wanted : kWanted) {
      if (!is_in_rotation(index++, 3)) {
        continue;
      }
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
