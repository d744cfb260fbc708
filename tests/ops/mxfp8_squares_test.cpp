// MXFP8 in squares of 32x32 on the cpu: codes and scales of TransformerEngine
// (tests/golden/ops/mxfp8_squares.txt, made by make_mxfp8_squares.py). Exact, but for squares with
// a NaN: there it passes the NaN by when it finds the scale, here all codes of the square are NaN.

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "base/error.h"
#include "device/cuda/cuda_device.h"
#include "numeric/convert.h"
#include "ops/cast/scale_blocks.h"
#include "ops/gemm/gemm_support.h"
#include "ops/quantizer_fixtures.h"

namespace fp8train::test {
namespace {

constexpr int64_t kSide = 32;

TensorFormat squares_of(DType dtype) {
  TensorFormat format = plain(dtype);
  format.block = per::block_32x32;
  format.policy = ScalePolicy::current;
  format.scale_type = ScaleType::e8m0;
  return format;
}

/// Both orientations of a cast.
struct Cast {
  Cast(Array& x, DType dtype)
      : rows(ConstView(x).shape.rows()),
        columns(ConstView(x).shape.back()),
        codes(dtype, {rows, columns}),
        scales(DType::e8m0, {rows * across(columns)}),
        columnwise_codes(dtype, {columns, rows}),
        columnwise_scales(DType::e8m0, {columns * across(rows)}) {
    ops::quantize(cpu_stream(), x,
                  {{codes, squares_of(dtype), scales},
                   {columnwise_codes, squares_of(dtype), columnwise_scales}},
                  &amax, nullptr);
  }
  static int64_t across(int64_t extent) { return (extent + kSide - 1) / kSide; }

  int64_t rows, columns;
  Array codes, scales, columnwise_codes, columnwise_scales;
  float amax = 0.0F;
};

/// Squares with a NaN: counts what is not NaN of their codes and scales, and makes them zero.
size_t mask_nan(const Array& x, Cast& cast) {
  size_t wrong = 0;
  const auto mask_square = [&](int64_t top, int64_t left) {
    const auto clear = [&](uint8_t& scale) {
      wrong += scale == 0xFF ? 0 : 1;
      scale = 0;
    };
    const int64_t bottom = std::min(cast.rows, top + kSide);
    const int64_t right = std::min(cast.columns, left + kSide);
    for (int64_t row = top; row < bottom; ++row) {
      clear(cast.scales.as<uint8_t>()[row * Cast::across(cast.columns) + left / kSide]);
      for (int64_t column = left; column < right; ++column) {
        for (auto& [codes, at] : {std::pair{&cast.codes, row * cast.columns + column},
                                  {&cast.columnwise_codes, column * cast.rows + row}}) {
          wrong += std::isnan(codes->get(at)) ? 0 : 1;
          codes->as<uint8_t>()[at] = 0;
        }
      }
    }
    for (int64_t column = left; column < right; ++column) {
      clear(cast.columnwise_scales.as<uint8_t>()[column * Cast::across(cast.rows) + top / kSide]);
    }
  };
  std::set<std::pair<int64_t, int64_t>> squares;
  for (int64_t i = 0; i < x.count(); ++i) {
    const std::pair corner = {i / cast.columns / kSide * kSide, i % cast.columns / kSide * kSide};
    if (std::isnan(x.get(i)) && squares.insert(corner).second) {
      mask_square(corner.first, corner.second);
    }
  }
  return wrong;
}

std::string prints(const Array& codes, const Array& scales) {
  return fingerprint(codes.bytes().data(), codes.bytes().size()) + " " +
         fingerprint(scales.bytes().data(), scales.bytes().size());
}

TEST_CASE("MXFP8 in squares has the codes and scales of TransformerEngine", "[ops][blocks]") {
  std::map<std::string, size_t> compared;
  for (std::istringstream& line : lines_that_begin_with("cast", "mxfp8_squares.txt")) {
    std::string source, input, dtype, wanted;
    line >> source >> input >> dtype;
    std::getline(line >> std::ws, wanted);
    INFO(source << " " << input << " " << dtype);
    Array x = input_of(input);
    Cast cast(x, dtype == "e4m3" ? DType::e4m3 : DType::e5m2);
    CHECK(mask_nan(x, cast) == 0);
    CHECK(prints(cast.codes, cast.scales) + " " +
              prints(cast.columnwise_codes, cast.columnwise_scales) ==
          wanted);
    compared[source] += 1;
  }
  CHECK(compared["python"] == 12);
  CHECK(compared["cuda"] == 32);
}

TEST_CASE("an infinity in a square is in the amax, and is the largest code", "[ops][blocks]") {
  Array x(DType::f32, {40, 40}, random_values(1600, 1));
  x.set(33 * 40 + 2, -INFINITY);
  const Cast cast(x, DType::e4m3);
  CHECK(std::isinf(cast.amax));
  for (int64_t row = 0; row < 40; ++row) {
    const uint8_t scale = cast.scales.bytes()[static_cast<size_t>(row * 2)];
    CHECK((scale == 0xFE) == (row >= 32));
  }
  CHECK(cast.codes.get(33 * 40 + 2) == -448.0F);
  CHECK(cast.codes.get(33 * 40 + 3) == 0.0F);
}

TEST_CASE("squares of 32x32 are multiplied by the cpu and on sm_100, elsewhere as bf16", "[ops]") {
  TensorFormat x = squares_of(DType::e4m3);
  x.block = per::block_1x32;
  const ops::GemmFormats formats = {x, squares_of(DType::e4m3)};
  CHECK(ops::gemm_support(DeviceTraits{}, formats).native);
  CHECK(ops::gemm_support(cuda_traits(100, 0), formats, {64, 64, 64}).native);
  CHECK(ops::gemm_support(cuda_traits(100, 0), formats, {64, 64, 48}).padded_k == 64);
  const ops::GemmSupport hopper = ops::gemm_support(cuda_traits(90, 0), formats, {64, 64, 64});
  CHECK(hopper.dequantized);
  CHECK(hopper.reason == "this GPU has no products with 1x32 scales");
  CHECK_FALSE(ops::gemm_support(DeviceTraits{}, {formats.b, formats.b}).native);
}

TEST_CASE("squares of 32x32 have e8m0 scales and FP8 codes", "[ops][blocks]") {
  TensorFormat format = squares_of(DType::e4m3);
  format.scale_type = ScaleType::pow2;
  CHECK_THROWS_AS(ops::check_blockwise_format(format), InternalError);
  CHECK_THROWS_AS(ops::check_blockwise_format(squares_of(DType::i8)), InternalError);
}

}  // namespace
}  // namespace fp8train::test
