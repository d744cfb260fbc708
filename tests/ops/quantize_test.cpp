#include "ops/cast/quantize.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "base/error.h"
#include "numeric/convert.h"
#include "numeric/with_type.h"
#include "ops/op_test_support.h"

using namespace fp8train;
using namespace fp8train::test;

namespace {

constexpr auto kCodeTypes = ByteCodes::kTypes;
constexpr int64_t kCounts[] = {1, 15, 64, 4095, 4097, 20001};

/// One quantized tensor on the host.
struct Codes {
  Codes(DType code_type, const Shape& shape, float factor)
      : codes(code_type, shape), scale(factor), scale_inv(1.0F / factor), dtype(code_type) {}

  QuantizedTensor view() {
    QuantizedTensor result;
    result.rowwise.codes = codes.view();
    TensorFormat format = plain(dtype);
    format.policy = ScalePolicy::current;
    set_tensor_cast(result, format, &scale, &scale_inv);
    return result;
  }

  Array codes;
  float scale, scale_inv;
  DType dtype;
};

/// Normals over many magnitudes, so that some saturate, some become subnormal and some vanish.
std::vector<float> wide_values(int64_t count, uint32_t seed) {
  std::vector<float> values = random_values(count, seed);
  const std::vector<float> exponents = random_values(count, seed + 1, 6.0F);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = std::ldexp(values[i], static_cast<int>(exponents[i]));
  }
  const float specials[] = {0.0F,   -0.0F,  1e-45F, -1e-40F, 127.5F,  128.0F,
                            448.0F, 449.0F, 464.0F, 465.0F,  57344.0F};
  for (size_t i = 0; i < values.size() && i < std::size(specials); ++i) {
    values[i] = specials[i];
  }
  return values;
}

uint8_t encode_scalar(DType dtype, float value) {
  uint8_t code = 0;
  with_code_type(dtype, [&](auto tag) {
    const auto encoded = encode<typename decltype(tag)::Type>(value);
    std::memcpy(&code, &encoded, sizeof(code));
  });
  return code;
}

}  // namespace

TEST_CASE("quantize writes the codes of the scalar encode and counts what happened", "[ops]") {
  for (const FloatType& type : kFloatTypes) {
    for (const DType code_type : kCodeTypes) {
      for (const int64_t count : kCounts) {
        for (const float scale : {1.0F, 37.5F, 0.01F}) {
          std::vector<float> values = wide_values(count, 11);
          if (count > 100) {
            values[50] = INFINITY;
            values[51] = -INFINITY;
          }
          Array x(type.dtype, {count}, values);
          Codes q(code_type, {count}, scale);
          float amax = 0.25F;
          ops::QuantizeStatistics statistics{9, 9, 9};
          ops::quantize(cpu_stream(), x, q.view(), &amax, &statistics);

          const float limit = saturation_threshold(code_type);
          float expected_amax = 0.25F;
          uint64_t saturated = 0;
          uint64_t underflow = 0;
          int64_t differences = 0;
          for (int64_t i = 0; i < count; ++i) {
            const float value = x.get(i);
            const uint8_t code = encode_scalar(code_type, value * scale);
            differences += code != q.codes.bytes()[static_cast<size_t>(i)] ? 1 : 0;
            expected_amax = std::max(expected_amax, std::fabs(value));
            saturated += std::fabs(value * scale) > limit ? 1 : 0;
            underflow += value != 0 && (code & 0x7F) == 0 ? 1 : 0;
          }
          REQUIRE(differences == 0);
          REQUIRE(amax == expected_amax);
          REQUIRE(statistics.count == static_cast<uint64_t>(count));
          REQUIRE(statistics.saturated == saturated);
          REQUIRE(statistics.underflow == underflow);
          REQUIRE((count < 100 || saturated > 0));
        }
      }
    }
  }
}

TEST_CASE("quantize gives the same bits at every level and thread count", "[ops]") {
  const int64_t count = 50003;
  for (const FloatType& type : kFloatTypes) {
    for (const DType code_type : kCodeTypes) {
      Array x(type.dtype, {count}, wide_values(count, 12));
      REQUIRE(same_everywhere([&](const ops::OpTable& table) {
        Codes q(code_type, {count}, 3.25F);
        float amax = 0.0F;
        ops::QuantizeStatistics statistics{};
        table.quantize(cpu_stream(), x, q.view(), &amax, &statistics, {});
        Bits bits;
        bits.add(q.codes);
        bits.add_value(amax);
        bits.add_value(statistics);
        return bits;
      }));
    }
  }
}

TEST_CASE("every bf16 and fp16 pattern is quantized as the scalar encode does", "[ops]") {
  for (const DType type : {DType::bf16, DType::f16}) {
    Array x(type, {65536});
    for (int i = 0; i < 65536; ++i) {
      x.as<uint16_t>()[i] = static_cast<uint16_t>(i);
    }
    for (const DType code_type : kCodeTypes) {
      for (const ops::OpTable* table : cpu_tables()) {
        Codes q(code_type, {65536}, 1.0F);
        table->quantize(cpu_stream(), x, q.view(), nullptr, nullptr, {});
        int64_t differences = 0;
        for (int64_t i = 0; i < 65536; ++i) {
          differences += encode_scalar(code_type, x.get(i)) != q.codes.bytes()[i] ? 1 : 0;
        }
        REQUIRE(differences == 0);
      }
    }
  }
}

TEST_CASE("amax is the largest magnitude and lets NaN win", "[ops]") {
  for (const FloatType& type : kFloatTypes) {
    for (const int64_t count : kCounts) {
      std::vector<float> values = random_values(count, 13);
      values[static_cast<size_t>(count / 2)] = -7.5F;
      for (const ops::OpTable* table : cpu_tables()) {
        Array x(type.dtype, {count}, values);
        float result = 99.0F;
        table->amax(cpu_stream(), x, &result, false);
        REQUIRE(result == 7.5F);
        x.set(count - 1, -INFINITY);
        table->amax(cpu_stream(), x, &result, false);
        REQUIRE(result == INFINITY);
        x.set(0, -NAN);
        table->amax(cpu_stream(), x, &result, false);
        REQUIRE(std::isnan(result));

        Codes q(DType::e4m3, {count}, 1.0F);
        float staged = 1.0F;
        table->quantize(cpu_stream(), x, q.view(), &staged, nullptr, {});
        REQUIRE(std::isnan(staged));
        Array zeros(type.dtype, {count});
        table->quantize(cpu_stream(), zeros, q.view(), &staged, nullptr, {});
        REQUIRE(std::isnan(staged));
        table->amax(cpu_stream(), zeros, &result, false);
        REQUIRE(result == 0.0F);
      }
    }
  }
}

TEST_CASE("quantize also writes the transposed codes", "[ops]") {
  const int64_t rows = 70;
  const int64_t columns = 300;
  Array x(DType::bf16, {rows, columns}, random_values(rows * columns, 14));
  Codes q(DType::e5m2, {rows, columns}, 2.0F);
  Array transposed(DType::e5m2, {columns, rows});
  QuantizedTensor view = q.view();
  view.columnwise.codes = transposed;
  ops::quantize(cpu_stream(), x, view, nullptr, nullptr);
  int64_t differences = 0;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      differences += transposed.bytes()[c * rows + r] != q.codes.bytes()[r * columns + c] ? 1 : 0;
    }
  }
  CHECK(differences == 0);
}

TEST_CASE("quantize that only writes the transpose gives the same codes, amax and counts",
          "[ops]") {
  for (const FloatType& type : kFloatTypes) {
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{70, 300}, {1, 65}, {129, 3}}) {
      Array x(type.dtype, {rows, columns}, wide_values(rows * columns, 15));
      const auto run = [&, rows = rows, columns = columns](const ops::OpTable& table, bool alone) {
        Codes q(DType::e4m3, {rows, columns}, 2.5F);
        Array transposed(DType::e4m3, {columns, rows});
        QuantizedTensor view = q.view();
        view.rowwise.codes = alone ? View{} : view.rowwise.codes;
        view.columnwise.codes = transposed;
        float amax = 0.5F;
        ops::QuantizeStatistics statistics{};
        table.quantize(cpu_stream(), x, view, &amax, &statistics, {});
        Bits bits;
        bits.add(transposed);
        bits.add_value(amax);
        bits.add_value(statistics);
        return bits;
      };
      const Bits expected = run(*cpu_tables().front(), false);
      CHECK(same_everywhere([&](const ops::OpTable& table) { return run(table, true); }));
      CHECK(run(*cpu_tables().front(), true) == expected);
    }
  }
}

TEST_CASE("transpose_codes transposes codes of any shape", "[ops]") {
  for (const auto& [rows, columns] :
       {std::pair<int64_t, int64_t>{70, 300}, {1, 65}, {129, 3}, {64, 64}, {300, 520}}) {
    Array x(DType::e4m3, {rows, columns});
    for (int64_t i = 0; i < rows * columns; ++i) {
      x.as<uint8_t>()[i] = static_cast<uint8_t>(i * 31 + i / 251);
    }
    const auto run = [&, rows = rows, columns = columns](const ops::OpTable& table) {
      Array y(DType::e4m3, {columns, rows});
      table.transpose_codes(cpu_stream(), x, y);
      int64_t differences = 0;
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < columns; ++c) {
          differences += y.as<uint8_t>()[c * rows + r] != x.as<uint8_t>()[r * columns + c] ? 1 : 0;
        }
      }
      CHECK(differences == 0);
      Bits bits;
      bits.add(y);
      return bits;
    };
    CHECK(same_everywhere(run));
  }
}

TEST_CASE("dequantize multiplies every code by the reciprocal scale", "[ops]") {
  for (const DType code_type : kCodeTypes) {
    for (const FloatType& type : kFloatTypes) {
      const int64_t count = 4099;
      Codes q(code_type, {count}, 3.0F);
      std::vector<float> expected;
      for (int64_t i = 0; i < count; ++i) {
        q.codes.as<uint8_t>()[i] = static_cast<uint8_t>(i * 7);
        expected.push_back(q.codes.get(i) * q.scale_inv);
      }
      Array y(type.dtype, {count});
      ops::dequantize(cpu_stream(), q.view().rowwise, y);
      int64_t differences = 0;
      const Array rounded(type.dtype, {count}, expected);
      for (int64_t i = 0; i < count; ++i) {
        const bool both_nan = std::isnan(y.get(i)) && std::isnan(expected[i]);
        differences += y.get(i) != rounded.get(i) && !both_nan ? 1 : 0;
      }
      REQUIRE(differences == 0);
    }
  }
}

TEST_CASE("quantize refuses what it cannot do", "[ops]") {
  Array x(DType::f32, {8});
  Codes q(DType::e4m3, {8}, 1.0F);
  Codes wrong_count(DType::e4m3, {9}, 1.0F);
  CHECK_THROWS_AS(ops::quantize(cpu_stream(), x, wrong_count.view(), nullptr, nullptr),
                  InternalError);
  QuantizedTensor by_row = q.view();
  by_row.rowwise.format.block = per::row;
  CHECK_THROWS_AS(ops::quantize(cpu_stream(), x, by_row, nullptr, nullptr), InternalError);
  QuantizedTensor stochastic = q.view();
  stochastic.rowwise.format.rounding = Rounding::stochastic;
  CHECK_THROWS_AS(ops::quantize(cpu_stream(), x, stochastic, nullptr, nullptr), InternalError);
  Codes integers(DType::i8, {8}, 1.0F);
  Array columnwise(DType::i8, {8, 1});
  QuantizedTensor with_transpose = integers.view();
  with_transpose.columnwise.codes = columnwise;
  CHECK_THROWS_AS(ops::quantize(cpu_stream(), x, with_transpose, nullptr, nullptr), InternalError);
  const auto refused = [](const auto& call, const char* why) {
    CHECK_THROWS_WITH(call(), Catch::Contains(why));
  };
  float amax = 1.0F;
  float scale_inv = 1.0F;
  const auto current = [&](const float* from, float* inverse, const QuantizedTensor& out) {
    return [&, from, inverse, out] {
      ops::quantize_current(cpu_stream(), x, from, inverse, out, nullptr);
    };
  };
  for (const ScaleType type : {ScaleType::e8m0, ScaleType::e4m3}) {
    QuantizedTensor other = q.view();
    other.rowwise.format.scale_type = type;
    refused(current(&amax, &scale_inv, other), "fp32 or pow2 scale expected");
    float scale = 1.0F;
    refused(
        [&] {
          ops::compute_current_scale(cpu_stream(), &amax, other.rowwise.format, &scale, &scale_inv);
        },
        "fp32 or pow2 scale expected");
  }
  refused(current(nullptr, &scale_inv, q.view()), "missing scalar");
  refused(current(&amax, nullptr, q.view()), "missing scalar");
  Array codes(DType::e4m3, {2, 4});
  Array not_transposed(DType::e4m3, {2, 4});
  refused([&] { ops::transpose_codes(cpu_stream(), codes, not_transposed); },
          "y is [columns, rows]");
  Array nine(DType::f32, {9});
  refused([&] { ops::dequantize(cpu_stream(), q.view().rowwise, nine); }, "counts differ");
  Encoded without_scale = q.view().rowwise;
  without_scale.tensor_scale = nullptr;
  refused([&] { ops::dequantize(cpu_stream(), without_scale, x); }, "no scale");
}
