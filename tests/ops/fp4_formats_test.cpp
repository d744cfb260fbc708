// MXFP4 and the options of NVFP4 on the cpu: codes and scales of the sources' own code
// (tests/golden/ops/mxfp4.txt and nvfp4.txt), shapes that fill no block, products.

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/names.h"
#include "ops/fp4_cases.h"

namespace fp8train::test {
namespace {

ScaleType scale_type_named(const std::string& name) {
  return std::ranges::find(kScaleTypeFacts, name, &ScaleTypeFacts::name)->type;
}

/// As make_mxfp4.py prints a cast: codes under a NaN scale are taken as zero.
std::string mx_prints(const Fp4Cast& cast) {
  std::vector<uint8_t> codes = cast.codes.bytes();
  const std::vector<uint8_t>& scales = cast.scales.bytes();
  for (size_t i = 0; i < codes.size(); ++i) {
    codes[i] = scales[i / 16] == 0xFF ? uint8_t{0} : codes[i];
  }
  return fingerprint(codes.data(), codes.size()) + " " + fingerprint(scales.data(), scales.size());
}

TEST_CASE("casts to MXFP4 have the codes and scales of torchao", "[ops][blocks]") {
  size_t compared = 0;
  for (std::istringstream& line : lines_that_begin_with("cast", "mxfp4.txt")) {
    std::string input, scale;
    line >> input >> scale;
    Array x = input_of(input);
    for (const bool columnwise : {false, true}) {
      std::string codes, scales;
      line >> codes >> scales;
      INFO(input << " " << scale << " columnwise " << columnwise);
      const TensorFormat format =
          fp4(per::block_1x32, false, Rounding::nearest_even, scale_type_named(scale));
      CHECK(mx_prints(Fp4Cast(x, format, columnwise)) == codes + " " + scales);
      compared += 1;
    }
  }
  CHECK(compared == 58);
}

TEST_CASE("4over6 and scales of rows have the bits of TransformerEngine's reference",
          "[ops][blocks]") {
  size_t compared = 0;
  for (std::istringstream& line : lines_that_begin_with("option", "nvfp4.txt")) {
    std::string input, tile, scale;
    int by_row = 0;
    line >> input >> tile >> scale >> by_row;
    Array x = input.starts_with("narrow") ? narrow(160, 256) : input_of(input);
    for (const bool columnwise : {false, true}) {
      std::string codes, scales, amax;
      line >> codes >> scales >> amax;
      INFO(input << " " << tile << " " << scale << ", rows " << by_row << ", columnwise "
                 << columnwise);
      TensorFormat format = fp4(tile == "16x16" ? per::block_16x16 : per::block_1x16, false,
                                Rounding::nearest_even, scale_type_named(scale));
      format.row_scaled = by_row == 1;
      CHECK(prints(Fp4Cast(x, format, columnwise)) == codes + " " + scales + " " + amax);
      compared += 1;
    }
  }
  CHECK(compared == 182);
}

/// Formats of which no test above has squares, or shapes that fill no block.
std::vector<TensorFormat> formats_of_any_shape() {
  std::vector<TensorFormat> formats;
  for (const ScaleType type : {ScaleType::e8m0, ScaleType::e8m0_floor, ScaleType::e8m0_even}) {
    formats.push_back(fp4(per::block_1x32, false, Rounding::nearest_even, type));
    formats.push_back(fp4(per::block_32x32, false, Rounding::nearest_even, type));
  }
  for (const bool hadamard : {false, true}) {
    TensorFormat by_row = fp4(per::block_1x16, hadamard);
    by_row.row_scaled = true;
    formats.push_back(by_row);
    by_row.scale_type = ScaleType::e4m3_4over6;
    formats.push_back(by_row);
  }
  formats.push_back(fp4(per::block_16x16, false, Rounding::nearest_even, ScaleType::e4m3_4over6));
  return formats;
}

TEST_CASE("FP4 of shapes that fill no block is what its padded matrix is", "[ops][blocks]") {
  constexpr int64_t kRows = 37;
  constexpr int64_t kColumns = 45;
  constexpr int64_t kPadded = 64;
  const std::vector<float> values = random_values(kRows * kColumns, 7, 3.0F);
  for (const TensorFormat& format : formats_of_any_shape()) {
    for (const bool columnwise : {false, true}) {
      INFO(describe(format) << ", columnwise " << columnwise);
      Array x(DType::bf16, {kRows, kColumns}, values);
      Array padded(DType::bf16, {kPadded, kPadded});
      // Elements that fill no block of 16 are not transformed: they are left out.
      const int64_t depth = columnwise ? kRows : kColumns;
      const int64_t compared = format.hadamard ? depth / 16 * 16 : depth;
      for (int64_t i = 0; i < kRows * kColumns; ++i) {
        const int64_t along = columnwise ? i / kColumns : i % kColumns;
        x.set(i, along < compared ? values[static_cast<size_t>(i)] : 0.0F);
        padded.set(i / kColumns * kPadded + i % kColumns, x.get(i));
      }
      Fp4Cast cast(x, format, columnwise);
      const Fp4Cast whole(padded, format, columnwise);
      size_t wrong = cast.amax == whole.amax ? 0 : 1;
      Array y(DType::f32, {cast.rows, cast.columns});
      ops::dequantize(cpu_stream(), cast.tensor(), y);
      for (int64_t i = 0; i < cast.rows * cast.columns; ++i) {
        const int64_t row = i / cast.columns;
        const int64_t column = i % cast.columns;
        const float read = decode(e2m1{cast.code(row, column)}) *
                           (cast.block_scale(row, column) * cast.above(row));
        wrong += cast.code(row, column) == whole.code(row, column) ? 0 : 1;
        wrong += cast.block_scale(row, column) == whole.block_scale(row, column) ? 0 : 1;
        wrong += y.get(i) == read ? 0 : 1;
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("4over6 lessens the error of every block, or leaves it", "[ops][blocks]") {
  constexpr int64_t kSide = 64;
  Array x(DType::bf16, {kSide, kSide}, random_values(kSide * kSide, 3));
  const auto errors = [&](ScaleType type) {
    Fp4Cast cast(x, fp4(per::block_1x16, false, Rounding::nearest_even, type), false);
    Array y(DType::f32, {kSide, kSide});
    ops::dequantize(cpu_stream(), cast.tensor(), y);
    std::vector<double> sums(kSide * kSide / 16);
    for (int64_t i = 0; i < kSide * kSide; ++i) {
      sums[static_cast<size_t>(i / 16)] += std::fabs(double{y.get(i)} - x.get(i));
    }
    return sums;
  };
  // Under one bound the first candidate is the cast without 4over6, but for the order of a product.
  const std::vector<double> plain = errors(ScaleType::e4m3);
  const std::vector<double> chosen = errors(ScaleType::e4m3_4over6_448);
  size_t less = 0;
  for (size_t i = 0; i < plain.size(); ++i) {
    CHECK(chosen[i] <= plain[i] * 1.0001);
    less += chosen[i] < plain[i] * 0.9999 ? 1 : 0;
  }
  CHECK(less > plain.size() / 4);
  CHECK(less < plain.size());
}

TEST_CASE("products of MXFP4 are exact but for the sum", "[ops][scaled_gemm]") {
  constexpr int64_t kM = 24, kN = 40, kK = 96;
  Array left(DType::bf16, {kM, kK}, random_values(kM * kK, 5, 2.0F));
  Array right(DType::bf16, {kN, kK}, random_values(kN * kK, 6));
  for (const ScaleBlock block : {per::block_1x32, per::block_32x32}) {
    Fp4Cast a(left, fp4(per::block_1x32, false, Rounding::nearest_even, ScaleType::e8m0_floor),
              false);
    Fp4Cast b(right, fp4(block, false, Rounding::nearest_even, ScaleType::e8m0_even), false);
    Array c(DType::f32, {kM, kN});
    ops::gemm(cpu_stream(), {.a = a.operand(false), .b = b.operand(true), .c = c});
    double worst = 0;
    for (int64_t i = 0; i < kM * kN; ++i) {
      double sum = 0, magnitude = 0;
      for (int64_t k = 0; k < kK; ++k) {
        const double term = double{decode(e2m1{a.code(i / kN, k)})} * a.block_scale(i / kN, k) *
                            decode(e2m1{b.code(i % kN, k)}) * b.block_scale(i % kN, k);
        sum += term;
        magnitude += std::fabs(term);
      }
      worst = std::max(worst, std::fabs(c.get(i) - sum) / magnitude);
    }
    CHECK(worst < 0x1p-20);
  }
}

TEST_CASE("stochastic MXFP4 differs from nearest in codes alone", "[ops][blocks]") {
  Array x(DType::bf16, {32, 64}, random_values(32 * 64, 11));
  const uint64_t pass = 1;
  const ops::CastOptions random = {.seed = 1, .pass = &pass, .tensor = 5};
  const ScaleType scale = ScaleType::e8m0;
  const Fp4Cast nearest(x, fp4(per::block_1x32, false, Rounding::nearest_even, scale), false);
  const Fp4Cast drawn(x, fp4(per::block_1x32, false, Rounding::stochastic, scale), false, random);
  CHECK(drawn.scales.bytes() == nearest.scales.bytes());
  size_t apart = 0, far = 0;
  for (int64_t i = 0; i < x.count(); ++i) {
    const int codes[] = {nearest.code(i / 64, i % 64) & 7, drawn.code(i / 64, i % 64) & 7};
    apart += codes[0] != codes[1] ? 1 : 0;
    far += std::abs(codes[0] - codes[1]) > 1 ? 1 : 0;
  }
  CHECK(apart > 200);
  CHECK(far == 0);
}

TEST_CASE("FP4 casts refuse scales that they lack", "[ops][blocks]") {
  Array x(DType::bf16, {16, 16}, random_values(256, 7));
  TensorFormat by_row = fp4(per::block_1x16);
  by_row.row_scaled = true;
  Fp4Cast cast(x, by_row, false);
  QuantizedTensor out = {cast.tensor()};
  out.rowwise.row_scales = nullptr;
  CHECK_THROWS_WITH(ops::quantize(cpu_stream(), x, out, nullptr, nullptr, {}),
                    Catch::Contains("no scales of rows"));
}

}  // namespace
}  // namespace fp8train::test
