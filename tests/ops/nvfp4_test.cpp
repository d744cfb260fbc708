// NVFP4 on the cpu: codes, scales and products of TransformerEngine's reference
// (tests/golden/ops/nvfp4.txt, made by make_nvfp4.py), shapes that fill no block, and stochastic
// rounding.

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "numeric/hadamard.h"
#include "ops/fp4_cases.h"
#include "ops/gemm/gemm.h"

namespace fp8train::test {
namespace {

constexpr const char* kFixture = "nvfp4.txt";

TEST_CASE("casts to NVFP4 have the codes and scales of TransformerEngine's reference",
          "[ops][blocks]") {
  size_t compared = 0;
  for (std::istringstream& line : lines_that_begin_with("cast", kFixture)) {
    std::string input, tile;
    int transform = 0;
    line >> input >> tile >> transform;
    Array x = input.starts_with("narrow") ? narrow(160, 256) : input_of(input);
    for (const bool columnwise : {false, true}) {
      std::string codes, scales, amax;
      line >> codes >> scales >> amax;
      INFO(input << " " << tile << " columnwise " << columnwise);
      const bool square = tile == "16x16";
      const Fp4Cast cast(
          x, fp4(square ? per::block_16x16 : per::block_1x16, transform == 1 && columnwise),
          columnwise);
      CHECK(prints(cast) == codes + " " + scales + " " + amax);
      compared += 1;
    }
  }
  CHECK(compared == 38);
}

TEST_CASE("products of NVFP4 are those of TransformerEngine's reference", "[ops][scaled_gemm]") {
  size_t compared = 0;
  for (std::istringstream& line : lines_that_begin_with("product", kFixture)) {
    std::string name;
    int64_t m = 0, n = 0, k = 0;
    line >> name >> m >> n >> k;
    INFO(name);
    const bool wgrad = name.starts_with("wgrad");
    const bool transformed = name == "wgrad";
    TensorFormat of_left = fp4(per::block_1x16, transformed);
    TensorFormat of_right = fp4(wgrad ? per::block_1x16 : per::block_16x16, transformed);
    of_left.row_scaled = name == "fprop.rows";
    of_right.row_scaled = name == "wgrad.rows";
    if (name == "fprop.4over6") {
      of_left.scale_type = of_right.scale_type = ScaleType::e4m3_4over6;
    }
    Array left = wgrad ? narrow(64, 16) : narrow(64, 32);
    Array right = wgrad ? narrow(64, 32) : narrow(16, 32);
    Fp4Cast a(left, of_left, wgrad);
    Fp4Cast b(right, of_right, wgrad);
    Array c(DType::f32, {m, n});
    ops::gemm(cpu_stream(), {.a = a.operand(false), .b = b.operand(true), .c = c});
    ops::GemmOperand without_scale = a.operand(false);
    without_scale.tensor.tensor_scale = nullptr;
    without_scale.tensor.row_scales = nullptr;
    CHECK_THROWS_AS(
        ops::gemm(cpu_stream(), {.a = without_scale, .b = b.operand(true), .c = c.view()}),
        InternalError);
    double worst = 0;
    for (int64_t i = 0; i < m * n; ++i) {
      std::string text;
      line >> text;
      double magnitude = 0;
      for (int64_t l = 0; l < k; ++l) {
        magnitude += std::fabs(double{decode(e2m1{a.code(i / n, l)})} *
                               decode(e2m1{b.code(i % n, l)}) * a.block_scale(i / n, l) *
                               b.block_scale(i % n, l) * a.above(i / n) * b.above(i % n));
      }
      worst = std::max(worst, std::fabs(double{c.get(i)} - float_of_hex(text)) / magnitude);
    }
    // Sums of 32 and 64 products in fp32 in another order, and two roundings of the scale.
    CHECK(worst < 0x1p-20);
    compared += 1;
  }
  CHECK(compared == 5);
}

/// The cast by definition, of values as they are.
void check_by_definition(Array& x, const Fp4Cast& cast, bool columnwise, bool hadamard) {
  const int64_t whole = hadamard ? cast.columns / 16 * 16 : 0;  // what is transformed
  std::vector<float> values;
  for (int64_t row = 0; row < cast.rows; ++row) {
    for (int64_t column = 0; column < cast.columns; ++column) {
      values.push_back(x.get(columnwise ? column * cast.rows + row : row * cast.columns + column));
    }
    float* const line = values.data() + row * cast.columns;
    for (int64_t block = 0; block < whole; block += 16) {
      random_hadamard(line + block, 1, 1);
      for (int64_t i = block; i < block + 16; ++i) {
        line[i] = decode(encode<bf16>(line[i]));
      }
    }
  }
  const auto at = [&](int64_t row, int64_t column) {
    return values[static_cast<size_t>(row * cast.columns + column)];
  };
  float amax = 0;
  for (const float value : values) {
    amax = std::max(amax, std::fabs(value));
  }
  CHECK(cast.amax == amax);
  CHECK(cast.scale == two_level_scale(amax));
  const int64_t height = cast.format.block.rows;
  size_t wrong = 0;
  for (int64_t row = 0; row < cast.rows; ++row) {
    for (int64_t column = 0; column < cast.columns; ++column) {
      float largest = 0;
      for (int64_t r = row / height * height;
           r < std::min(cast.rows, row / height * height + height); ++r) {
        for (int64_t c = column / 16 * 16; c < std::min(cast.columns, column / 16 * 16 + 16); ++c) {
          largest = std::max(largest, std::fabs(at(r, c)));
        }
      }
      const e4m3 scale = two_level_block_scale(largest, cast.scale);
      const e2m1 code = encode<e2m1>(at(row, column) * two_level_factor(scale, cast.scale));
      wrong += cast.block_scale(row, column) == decode(scale) ? 0 : 1;
      wrong += cast.code(row, column) == code.bits ? 0 : 1;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("NVFP4 casts refuse what they cannot do", "[ops][blocks]") {
  Array x(DType::bf16, {16, 16}, random_values(256, 7));
  const auto refused = [&](const QuantizedTensor& out, const char* why) {
    float amax = 0.0F;
    CHECK_THROWS_WITH(ops::quantize(cpu_stream(), x, out, &amax, nullptr, {}),
                      Catch::Contains(why));
  };
  Fp4Cast cast(x, fp4(per::block_1x16), false);
  QuantizedTensor out = {cast.tensor()};
  out.rowwise.format.rounding =
      Rounding::stochastic;  // without a pass that numbers the random bits
  refused(out, "no random bits");
  out = {cast.tensor()};
  out.rowwise.cast_scales = nullptr;
  refused(out, "no scales of the tensor");
  out = {cast.tensor()};
  out.rowwise.tensor_scale = nullptr;
  refused(out, "no scales of the tensor");
  out = {cast.tensor()};
  out.rowwise.format.hadamard = true;
  out.columnwise = out.rowwise;
  refused(out, "transformed values have a scale of the tensor for each orientation");
}

TEST_CASE("NVFP4 of shapes that fill no block, and what it is read as", "[ops][blocks]") {
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{37, 45}, {1, 3}, {130, 66}}) {
    Array x(DType::bf16, {rows, columns}, random_values(rows * columns, 7, 3.0F));
    for (const bool columnwise : {false, true}) {
      for (const TensorFormat& format :
           {fp4(per::block_1x16), fp4(per::block_16x16), fp4(per::block_1x16, true)}) {
        INFO(describe(format) << " " << rows << " x " << columns << ", columnwise " << columnwise);
        Fp4Cast cast(x, format, columnwise);
        check_by_definition(x, cast, columnwise, format.hadamard);
        CHECK(cast.statistics.count == static_cast<uint64_t>(rows * columns));
        Array y(DType::f32, {cast.rows, cast.columns});
        Encoded stored = {cast.codes, format, cast.scales};
        stored.tensor_scale = &cast.scale_inv;
        ops::dequantize(cpu_stream(), stored, y);
        size_t wrong = 0;
        for (int64_t i = 0; i < y.count(); ++i) {
          const int64_t row = i / cast.columns;
          const int64_t column = i % cast.columns;
          const float factor = cast.block_scale(row, column) * cast.scale_inv;
          wrong += y.get(i) == decode(e2m1{cast.code(row, column)}) * factor ? 0 : 1;
        }
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("both orientations of squares have the same codes", "[ops][blocks]") {
  Array x(DType::f32, {48, 80}, random_values(48 * 80, 3));
  const Fp4Cast rowwise(x, fp4(per::block_16x16), false);
  const Fp4Cast columnwise(x, fp4(per::block_16x16), true);
  size_t wrong = 0;
  for (int64_t i = 0; i < 48 * 80; ++i) {
    wrong += rowwise.code(i / 80, i % 80) == columnwise.code(i % 80, i / 80) ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("stochastic NVFP4 is unbiased, and the same for every number of threads",
          "[ops][blocks]") {
  constexpr int64_t kRows = 64;
  constexpr int64_t kColumns = 48;
  constexpr int kPasses = 400;
  Array x(DType::bf16, {kRows, kColumns}, random_values(kRows * kColumns, 11));
  const TensorFormat format = fp4(per::block_1x16, false, Rounding::stochastic);
  const Fp4Cast nearest(x, fp4(per::block_1x16), false);
  std::vector<double> sums(static_cast<size_t>(kRows * kColumns));
  size_t far = 0;
  for (uint64_t pass = 0; pass < kPasses; ++pass) {
    const Fp4Cast cast(x, format, false, {.seed = 1, .pass = &pass, .tensor = 5});
    CHECK(cast.scales.bytes() == nearest.scales.bytes());
    for (int64_t i = 0; i < x.count(); ++i) {
      const int64_t row = i / kColumns;
      const int64_t column = i % kColumns;
      const double unit = double{cast.block_scale(row, column)} * cast.scale_inv;
      const double value = decode(e2m1{cast.code(row, column)}) * unit;
      sums[static_cast<size_t>(i)] += value;
      far += std::fabs(value - x.get(i)) < 2.2 * unit ? 0 : 1;  // the widest spacing is 2
    }
  }
  CHECK(far == 0);
  double mean_error = 0;
  double worst = 0;
  for (int64_t i = 0; i < x.count(); ++i) {
    const double unit = double{nearest.block_scale(i / kColumns, i % kColumns)} * nearest.scale_inv;
    const double error = (sums[static_cast<size_t>(i)] / kPasses - x.get(i)) / unit;
    if (std::fabs(x.get(i)) > 6 * unit) {  // clipped: the scale has been rounded down
      CHECK(std::fabs(x.get(i)) < 6.4 * unit);
      continue;
    }
    mean_error += error / static_cast<double>(x.count());
    worst = std::max(worst, std::fabs(error));
  }
  CHECK(std::fabs(mean_error) < 0.005);  // to nearest 0.25 for a single value, but not its mean
  CHECK(worst < 0.3);  // six standard deviations of the mean of 400 draws two units apart

  // 130 x 520 elements are cast by several threads; each draw is its own.
  Array wide(DType::bf16, {130, 520}, random_values(130 * 520, 12));
  const uint64_t pass = 9;
  const ops::CastOptions random = {.seed = 1, .pass = &pass, .tensor = 5};
  set_threads(1);
  const Fp4Cast one(wide, format, true, random);
  set_threads(3);
  const Fp4Cast three(wide, format, true, random);
  CHECK(one.codes.bytes() == three.codes.bytes());
  const uint64_t next = 10;
  CHECK(Fp4Cast(wide, format, true, {.seed = 1, .pass = &next, .tensor = 5}).codes.bytes() !=
        one.codes.bytes());
  CHECK(Fp4Cast(wide, format, true, {.seed = 1, .pass = &pass, .tensor = 6}).codes.bytes() !=
        one.codes.bytes());
}

}  // namespace
}  // namespace fp8train::test
