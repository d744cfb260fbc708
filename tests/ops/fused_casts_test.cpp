// Operations that cast their result: exact. What they write is what the operation without a cast
// and then amax or quantize write, to the last bit.

#include "ops/fused_casts.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "base/error.h"
#include "numeric/bits.h"
#include "numeric/with_type.h"
#include "ops/op_test_support.h"

namespace fp8train::test {
namespace {

constexpr ops::QuantizeStatistics kBefore = {9, 9, 9};

struct Wanted {
  bool y, codes, transposed, statistics;
};
constexpr Wanted kWanted[] = {{true, false, false, false}, {true, true, false, true},
                              {false, true, false, false}, {false, false, true, true},
                              {false, true, true, false},  {true, true, true, true}};

/// What an operation left, with and without the cast inside.
struct Result {
  Array y, codes, transposed, mean, rstd;
  float scale = 3.5F, scale_inv = 0.0F, amax = 0.25F;
  ops::QuantizeStatistics statistics = kBefore;

  QuantizedTensor quantized(DType code_type, const Wanted& wanted) {
    QuantizedTensor out;
    set_tensor_cast(out, plain(code_type), &scale, &scale_inv);
    out.rowwise.codes = wanted.codes ? codes.view() : View{};
    out.columnwise.codes = wanted.transposed ? transposed.view() : View{};
    return out;
  }
};

struct Case {
  Fused fused;
  DType x_type, y_type, code_type;
  int64_t rows, width;
  bool adversarial = false;
};

struct Inputs {
  explicit Inputs(const Case& c)
      : x(c.x_type, input_shape(c.fused, c.rows, c.width)),
        dy(c.x_type, {c.rows, c.width}, random_values(c.rows * c.width, 2)),
        weight(DType::f32, {c.width}, random_values(c.width, 3)),
        bias(DType::f32, {c.width}, random_values(c.width, 4)) {
    const std::vector<float> values = random_values(x.count(), 1, 8.0F);
    const float special[] = {0.0F, 1e-40F, -3e38F, 60000.0F, INFINITY, NAN};
    for (int64_t i = 0; i < x.count(); ++i) {
      const bool odd = c.adversarial && i % 7 == 0;
      x.set(i, odd ? special[i / 7 % 6] : values[static_cast<size_t>(i)]);
    }
  }
  FusedOperands operands(Result& result) { return {x, dy, weight, bias, result.mean, result.rstd}; }
  Array x, dy, weight, bias;
};

Result empty_result(const Case& c) {
  const Shape shape = result_shape(c.fused, c.rows, c.width);
  Result result;
  result.y = Array(c.y_type, shape);
  result.codes = Array(c.code_type, shape);
  result.transposed = Array(c.code_type, {shape.back(), shape.rows()});
  result.mean = Array(DType::f32, {c.rows});
  result.rstd = result.mean;
  return result;
}

Result in_two_steps(const Case& c, Inputs& inputs, const Wanted& wanted) {
  Result result = empty_result(c);
  call(c.fused, cpu_stream(), inputs.operands(result), result.y);
  if (wanted.codes || wanted.transposed) {
    ops::quantize(cpu_stream(), result.y, result.quantized(c.code_type, wanted), &result.amax,
                  wanted.statistics ? &result.statistics : nullptr);
  } else {
    float amax = 0.0F;
    ops::amax(cpu_stream(), result.y, &amax);
    result.amax = std::isnan(amax) ? amax : std::max(amax, result.amax);
  }
  return result;
}

Result in_one(const Case& c, Inputs& inputs, const Wanted& wanted) {
  Result result = empty_result(c);
  View y = result.y;
  y.data = wanted.y ? y.data : nullptr;
  ops::QuantizeSink sink = {.out = {}, .amax = &result.amax};
  if (wanted.codes || wanted.transposed) {
    sink.out = result.quantized(c.code_type, wanted);
    sink.statistics = wanted.statistics ? &result.statistics : nullptr;
  }
  call(c.fused, cpu_stream(), inputs.operands(result), y, sink);
  return result;
}

void check_case(const Case& c) {
  Inputs inputs(c);
  for (const Wanted& wanted : kWanted) {
    INFO("operation " << static_cast<int>(c.fused) << ", " << name_of(c.x_type) << " to "
                      << name_of(c.y_type) << " to " << name_of(c.code_type) << ", " << c.rows
                      << " x " << c.width << ", y " << wanted.y << " codes " << wanted.codes
                      << " transposed " << wanted.transposed);
    const Result two = in_two_steps(c, inputs, wanted);
    const Result one = in_one(c, inputs, wanted);
    CHECK((!wanted.y || one.y.bytes() == two.y.bytes()));
    CHECK(one.codes.bytes() == two.codes.bytes());
    CHECK(one.transposed.bytes() == two.transposed.bytes());
    CHECK(one.mean.bytes() == two.mean.bytes());
    CHECK(one.rstd.bytes() == two.rstd.bytes());
    CHECK(bits_of(one.amax) == bits_of(two.amax));
    CHECK(bits_of(one.scale_inv) == bits_of(two.scale_inv));
    CHECK(one.statistics.count == two.statistics.count);
    CHECK(one.statistics.saturated == two.statistics.saturated);
    CHECK(one.statistics.underflow == two.statistics.underflow);
  }
}

TEST_CASE("an operation that casts its result gives what it and quantize give", "[ops]") {
  for (const Fused fused : kFused) {
    for (const FloatType& type : kFloatTypes) {
      for (const DType code_type : Fp8Types::kTypes) {
        check_case({fused, type.dtype, type.dtype, code_type, 70, 37});
      }
    }
    // The last is longer than a piece of a row, and several threads take part.
    for (const auto& [rows, width] : {std::pair{1, 1}, {3, 128}, {130, 257}, {5, 9001}}) {
      check_case({fused, DType::bf16, DType::bf16, DType::e4m3, rows, width});
    }
    if (is_norm(fused)) {
      check_case({fused, DType::f32, DType::bf16, DType::e4m3, 33, 100});
    }
  }
}

TEST_CASE("an operation that casts its result meets infinities and NaNs", "[ops]") {
  for (const Fused fused : kFused) {
    for (const FloatType& type : kFloatTypes) {
      check_case({fused, type.dtype, type.dtype, DType::e5m2, 40, 66, true});
    }
  }
}

TEST_CASE("a result goes somewhere, and codes have its shape", "[ops]") {
  const Case c = {Fused::gelu, DType::bf16, DType::bf16, DType::e4m3, 4, 8};
  Inputs inputs(c);
  Result result = empty_result(c);
  const FusedOperands operands = inputs.operands(result);
  const View nowhere = {nullptr, DType::bf16, {4, 8}};
  CHECK_THROWS_AS(call(c.fused, cpu_stream(), operands, nowhere, {.amax = &result.amax}),
                  InternalError);
  Array narrow(DType::e4m3, {8, 4});
  QuantizedTensor out = result.quantized(DType::e4m3, {true, true, false, false});
  out.rowwise.codes = narrow;
  CHECK_THROWS_AS(call(c.fused, cpu_stream(), operands, nowhere, {.out = out}), InternalError);
}

}  // namespace
}  // namespace fp8train::test
