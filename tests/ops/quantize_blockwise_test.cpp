// Casts with a scale for each block against a plain reference in double precision.

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>

#include "base/error.h"
#include "numeric/convert.h"
#include "ops/blockwise_cases.h"
#include "ops/cast/quantize.h"
#include "ops/expected_scale.h"

using namespace fp8train;
using namespace fp8train::test;

namespace {

/// One orientation on the host.
struct Orientation {
  Orientation(const TensorFormat& wanted, ScaleLayout order, int64_t rows, int64_t columns)
      : format(wanted),
        layout(order),
        codes(format.dtype, {rows, columns}),
        grid(ops::scale_grid(format.block, rows, columns, layout)),
        scale_inv(dtype_of(format.scale_type), {grid.count}),
        scale(DType::f32, {grid.count}) {}

  Encoded view() { return with_cast_scales(codes, format, scale_inv, scale.as<float>(), layout); }

  TensorFormat format;
  ScaleLayout layout;
  Array codes;
  ops::ScaleGrid grid;
  Array scale_inv, scale;
};

uint8_t encode_scalar(DType dtype, float value) {
  uint8_t code = 0;
  with_code_type(dtype, [&](auto tag) {
    code = std::bit_cast<uint8_t>(encode<typename decltype(tag)::Type>(value));
  });
  return code;
}

/// Index of the scale (row, column) among [down, across] ones.
int64_t scale_index(const TensorFormat& format, ScaleLayout layout, int64_t down, int64_t across,
                    int64_t row, int64_t column) {
  const auto padded = [](int64_t count) { return (count + 3) / 4 * 4; };
  if (layout == ScaleLayout::row_major || format.block == per::row) {
    return row * across + column;
  }
  if (format.block == per::block_1x128) {
    return column * padded(down) + row;
  }
  if (format.block == per::block_128x128) {
    return row * padded(across) + column;
  }
  const int64_t tile = (row / 128) * (padded(across) / 4) + column / 4;
  return tile * 512 + (row % 32) * 16 + ((row / 32) % 4) * 4 + column % 4;
}

struct Counts {
  uint64_t saturated = 0, underflow = 0;
};

/// Differences of an orientation from the reference; `at` reads the value of (row, column) in that
/// orientation.
template <typename At>
int64_t differences(Orientation& got, const TensorFormat& format, ScaleLayout layout, DType input,
                    int64_t rows, int64_t columns, At at, Counts& counts) {
  const int64_t height = format.block.rows;
  const int64_t width = format.block == per::row ? columns : format.block.columns;
  const int64_t down = (rows + height - 1) / height;
  const int64_t across = (columns + width - 1) / width;
  int64_t wrong = 0;
  for (int64_t block = 0; block < down * across; ++block) {
    const int64_t row_begin = block / across * height;
    const int64_t column_begin = block % across * width;
    const int64_t row_end = std::min(rows, row_begin + height);
    const int64_t column_end = std::min(columns, column_begin + width);
    float amax = 0.0F;
    for (int64_t row = row_begin; row < row_end; ++row) {
      for (int64_t column = column_begin; column < column_end; ++column) {
        const float magnitude = std::fabs(at(row, column));
        amax = std::isnan(amax) || std::isnan(magnitude) ? NAN : std::max(amax, magnitude);
      }
    }
    const Expected want = expected_scale(format, input, amax);
    const bool by_row = format.block == per::block_32x32;  // each row has the scale of its square
    for (int64_t row = row_begin; row < (by_row ? row_end : row_begin + 1); ++row) {
      const int64_t index = scale_index(format, layout, by_row ? rows : down, across,
                                        by_row ? row : block / across, block % across);
      if (dtype_of(format.scale_type) == DType::e8m0) {
        wrong += got.scale_inv.as<uint8_t>()[index] != want.exponent ? 1 : 0;
      } else {
        wrong += got.scale_inv.as<float>()[index] != want.scale_inv ? 1 : 0;
        wrong += got.scale.as<float>()[index] != want.scale ? 1 : 0;
      }
    }
    for (int64_t row = row_begin; row < row_end; ++row) {
      for (int64_t column = column_begin; column < column_end; ++column) {
        const float value = at(row, column);
        const uint8_t code = encode_scalar(format.dtype, value * want.scale);
        wrong += got.codes.as<uint8_t>()[row * columns + column] != code ? 1 : 0;
        const double limit = format.dtype == DType::e4m3 ? 464.0
                             : format.dtype == DType::i8 ? 127.5
                                                         : 61440.0;
        counts.saturated += std::fabs(value * want.scale) > limit ? 1 : 0;
        counts.underflow += value != 0.0F && (code & 0x7F) == 0 ? 1 : 0;
      }
    }
  }
  return wrong;
}

/// max(|values|, at_least), NaN if there is one.
float largest_of(const std::vector<float>& values, float at_least) {
  for (const float value : values) {
    if (std::isnan(value)) {
      return float_of(0x7FC00000U);
    }
    at_least = std::max(at_least, std::abs(value));
  }
  return at_least;
}

bool same_bits(float a, float b) {
  return bits_of(a) == bits_of(b);
}

}  // namespace

TEST_CASE("quantize_blockwise agrees with the reference in both orientations", "[ops][blocks]") {
  for (const TensorFormat& format : blockwise_formats()) {
    for (const ScaleLayout layout : kScaleLayouts) {
      for (const FloatType& type : kFloatTypes) {
        for (const Extents& extents : kBlockExtents) {
          const auto [rows, columns] = extents;
          for (const bool finite : {true, false}) {
            INFO(describe(format) << " of " << name_of(type.dtype) << ", " << rows << " x "
                                  << columns << ", layout " << static_cast<int>(layout));
            Array x(type.dtype, {rows, columns}, block_values(extents, 3, finite));
            Orientation rowwise(format, layout, rows, columns);
            Orientation columnwise(format, layout, columns, rows);
            ops::QuantizeStatistics statistics{9, 9, 9};
            float amax = 0.5F;  // combined with what is there
            ops::quantize(cpu_stream(), x, {rowwise.view(), columnwise.view()}, &amax, &statistics);
            const std::vector<float> values = x.values();
            CHECK(same_bits(amax, largest_of(values, 0.5F)));
            const auto at = [&, columns = columns](int64_t row, int64_t column) {
              return values[static_cast<size_t>(row * columns + column)];
            };
            Counts counts;
            Counts others;
            CHECK(differences(rowwise, format, layout, type.dtype, rows, columns, at, counts) == 0);
            CHECK(differences(
                      columnwise, format, layout, type.dtype, columns, rows,
                      [&](int64_t row, int64_t column) { return at(column, row); }, others) == 0);
            CHECK(statistics.count == static_cast<uint64_t>(x.count()));
            CHECK(statistics.saturated == counts.saturated);
            CHECK(statistics.underflow == counts.underflow);
          }
        }
      }
    }
  }
}

TEST_CASE("codes and scales are torchao's for MX and for rows", "[ops][blocks]") {
  struct Fixture {
    DType dtype;
    ScaleBlock block;
    ScaleType scale_type;
    uint64_t prints[4];  // codes and scales of rowwise, then of columnwise
  };
  // tests/golden/make_blockwise.py
  const Fixture fixtures[] = {
      {DType::e4m3,
       per::block_1x32,
       ScaleType::e8m0,
       {0x3FA2C78F06E8F5F6U, 0x9EEE3CC30EAA2F92U, 0x8310AD475CB97FA4U, 0x278D3B45382E8B65U}},
      {DType::e4m3,
       per::row,
       ScaleType::f32,
       {0x45E5615DE21ADE6AU, 0xB754A652BE7B200EU, 0xBB49FFF17BDC3A05U, 0x913A6D51D19823DEU}},
      {DType::e4m3,
       per::row,
       ScaleType::pow2,
       {0x111470FA5AB52616U, 0x925D68A9B012F325U, 0xEAD2620F0E3CADEBU, 0xB9C27714DCCF06A5U}},
      {DType::e5m2,
       per::block_1x32,
       ScaleType::e8m0,
       {0xBE9D052BE9925B47U, 0x138AAF0F0710A128U, 0xDDDF14A3EE5453E4U, 0xE541331642497769U}},
      {DType::e5m2,
       per::row,
       ScaleType::f32,
       {0xC68C9FA3A432A910U, 0x5D4EA07087954DEEU, 0xDBD7B6FB6D4347A0U, 0x9F06C4F1B29C9D37U}},
      {DType::e5m2,
       per::row,
       ScaleType::pow2,
       {0x7F0FA30AB3BC0392U, 0xF4EE745B894CC445U, 0xE056B0003A7B6CDFU, 0x560D1D4A5C10C970U}},
  };
  Array x(DType::bf16, {256, 384});
  uint32_t state = 12345;
  for (int64_t i = 0; i < x.count(); ++i) {
    state = state * 1664525U + 1013904223U;
    const uint32_t word = state >> 16;
    x.as<uint16_t>()[i] = static_cast<uint16_t>((word & 0x807FU) | (100U + (word >> 7) % 50U) << 7);
  }
  const auto fingerprint = [](const Array& array) {
    uint64_t result = 0xCBF29CE484222325U;
    for (const uint8_t byte : array.bytes()) {
      result = (result ^ byte) * 0x100000001B3U;
    }
    return result;
  };
  for (const Fixture& fixture : fixtures) {
    TensorFormat format = plain(fixture.dtype);
    format.block = fixture.block;
    format.scale_type = fixture.scale_type;
    format.policy = ScalePolicy::current;
    INFO(describe(format));
    Orientation rowwise(format, ScaleLayout::row_major, 256, 384);
    Orientation columnwise(format, ScaleLayout::row_major, 384, 256);
    ops::quantize(cpu_stream(), x, {rowwise.view(), columnwise.view()}, nullptr, nullptr);
    const bool e8m0_scales = dtype_of(format.scale_type) == DType::e8m0;
    CHECK(fingerprint(rowwise.codes) == fixture.prints[0]);
    CHECK(fingerprint(e8m0_scales ? rowwise.scale_inv : rowwise.scale) == fixture.prints[1]);
    CHECK(fingerprint(columnwise.codes) == fixture.prints[2]);
    CHECK(fingerprint(e8m0_scales ? columnwise.scale_inv : columnwise.scale) == fixture.prints[3]);
  }
}

TEST_CASE("quantize_blockwise gives the same bits at every level and thread count",
          "[ops][blocks]") {
  const Extents extents = {300, 520};
  for (const TensorFormat& format : blockwise_formats()) {
    for (const FloatType& type : kFloatTypes) {
      Array x(type.dtype, {300, 520}, block_values(extents, 4, false));
      for (const bool both : {true, false}) {
        INFO(describe(format) << " of " << name_of(type.dtype));
        CHECK(same_everywhere([&](const ops::OpTable& table) {
          Orientation rowwise(format, ScaleLayout::row_major, 300, 520);
          Orientation columnwise(format, ScaleLayout::row_major, 520, 300);
          ops::QuantizeStatistics statistics{};
          float amax = 0.0F;
          table.quantize(cpu_stream(), x, {both ? rowwise.view() : Encoded{}, columnwise.view()},
                         &amax, &statistics, {});
          Bits bits;
          bits.add_value(amax);
          for (const Orientation* side : {&rowwise, &columnwise}) {
            bits.add(side->codes);
            bits.add(side->scale_inv);
          }
          bits.add_value(statistics);
          Array y(type.dtype, {520, 300});
          table.dequantize(cpu_stream(), columnwise.view(), y);
          bits.add(y);
          return bits;
        }));
      }
    }
  }
}

TEST_CASE("dequantize multiplies each code by the reciprocal scale of its block", "[ops][blocks]") {
  for (const TensorFormat& format : blockwise_formats()) {
    for (const ScaleLayout layout : kScaleLayouts) {
      for (const auto& [rows, columns] : kBlockExtents) {
        Orientation q(format, layout, rows, columns);
        for (int64_t i = 0; i < rows * columns; ++i) {
          q.codes.as<uint8_t>()[i] = static_cast<uint8_t>(i * 7);
        }
        for (int64_t i = 0; i < q.grid.count; ++i) {
          if (dtype_of(format.scale_type) == DType::e8m0) {
            q.scale_inv.as<uint8_t>()[i] = static_cast<uint8_t>(120 + i % 17);
          } else {
            q.scale_inv.as<float>()[i] = 0.37F * static_cast<float>(i + 1);
          }
        }
        Array y(DType::f32, {rows, columns});
        ops::dequantize(cpu_stream(), q.view(), y);
        const int64_t height = q.grid.height;
        const int64_t width = q.grid.width;
        int64_t wrong = 0;
        for (int64_t i = 0; i < rows * columns; ++i) {
          const int64_t index = scale_index(format, layout, q.grid.rows, q.grid.columns,
                                            i / columns / height, i % columns / width);
          const float factor = dtype_of(format.scale_type) == DType::e8m0
                                   ? std::ldexp(1.0F, q.scale_inv.as<uint8_t>()[index] - 127)
                                   : q.scale_inv.as<float>()[index];
          const float want = q.codes.get(i) * factor;
          wrong += y.get(i) != want && !(std::isnan(want) && std::isnan(y.get(i))) ? 1 : 0;
        }
        INFO(describe(format) << ", " << rows << " x " << columns);
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("quantize of blocks refuses what it cannot do", "[ops][blocks]") {
  const TensorFormat format = blockwise_formats().front();  // row, fp32
  Array x(DType::f32, {8, 16});
  Orientation q(format, ScaleLayout::row_major, 8, 16);
  const auto refused = [&](const TensorFormat& wanted, Encoded view) {
    view.format = wanted;
    CHECK_THROWS_AS(ops::quantize(cpu_stream(), x, {view}, nullptr, nullptr), InternalError);
  };
  TensorFormat wrong = format;
  wrong.block = per::tensor;
  Encoded view = q.view();
  view.cast_scales = nullptr;
  refused(wrong, view);
  refused(format, view);
  wrong = format;
  wrong.scale_type = ScaleType::e8m0;
  refused(wrong, q.view());
  wrong = format;
  wrong.block = per::block_1x32;
  CHECK_THROWS_AS(ops::check_blockwise_format(wrong), InternalError);
  wrong.scale_type = ScaleType::e8m0;
  wrong.dtype = DType::i8;
  CHECK_THROWS_AS(ops::check_blockwise_format(wrong), InternalError);
  wrong = format;
  wrong.rounding = Rounding::stochastic;
  refused(wrong, q.view());
  wrong = format;
  wrong.policy = ScalePolicy::delayed;
  refused(wrong, q.view());
  refused(format, {});
  view = q.view();
  view.scales.shape = {9};
  refused(format, view);
  view = q.view();
  view.codes.shape = {16, 8};
  refused(format, view);
  wrong = format;
  wrong.scale_type = ScaleType::e4m3;
  CHECK_THROWS_AS(ops::block_rule(wrong, DType::f32), InternalError);
  for (const View& scales :
       {View{q.view().scales.data, DType::f32, {9}}, View{nullptr, DType::f32, {8}}}) {
    view = q.view();
    view.scales = scales;
    CHECK_THROWS_WITH(ops::dequantize(cpu_stream(), view, x),
                      Catch::Contains("wrong number of scales"));
  }
}

TEST_CASE("rows that cross as codes with powers of two are cast again to nearly the same codes") {
  // As they go to experts (arXiv 2412.19437, section 3.3.3): the codes along rows stay, and those
  // along columns, of which wgrad is made, are rounded twice.
  constexpr int64_t kRows = 256;
  constexpr int64_t kColumns = 384;
  TensorFormat format = {.dtype = DType::e4m3};
  format.block = per::block_1x128;
  format.policy = ScalePolicy::current;
  format.scale_type = ScaleType::pow2;
  Array x(DType::bf16, {kRows, kColumns}, random_values(kRows * kColumns, 21));
  const auto cast = [&](Array& values, Orientation& rowwise, Orientation& columnwise) {
    ops::quantize(cpu_stream(), values, {rowwise.view(), columnwise.view()}, nullptr, nullptr);
  };
  Orientation rows(format, ScaleLayout::row_major, kRows, kColumns);
  Orientation columns(format, ScaleLayout::row_major, kColumns, kRows);
  cast(x, rows, columns);
  Array received(DType::bf16, {kRows, kColumns});
  ops::dequantize(cpu_stream(), rows.view(), received);
  Orientation rows_again(format, ScaleLayout::row_major, kRows, kColumns);
  Orientation columns_again(format, ScaleLayout::row_major, kColumns, kRows);
  cast(received, rows_again, columns_again);
  const auto decoded = [&](Orientation& of, int64_t height, int64_t width) {
    Array values(DType::f32, {height, width});
    ops::dequantize(cpu_stream(), of.view(), values);
    return values.values();
  };
  CHECK(decoded(rows_again, kRows, kColumns) == decoded(rows, kRows, kColumns));
  const std::vector<float> direct = decoded(columns, kColumns, kRows);
  const std::vector<float> twice = decoded(columns_again, kColumns, kRows);
  double error_direct = 0;
  double error_twice = 0;
  int64_t far = 0;
  for (int64_t i = 0; i < kRows * kColumns; ++i) {
    const auto at = static_cast<size_t>(i);
    const double exact = static_cast<double>(x.get(i % kRows * kColumns + i / kRows));
    error_direct += std::pow(static_cast<double>(direct[at]) - exact, 2.0);
    error_twice += std::pow(static_cast<double>(twice[at]) - exact, 2.0);
    // Neighbours of three bits behind the point are an eighth apart at most.
    far += std::fabs(twice[at] - direct[at]) > 0.126F * std::fabs(direct[at]) + 0x1p-9F ? 1 : 0;
  }
  CHECK(far == 0);
  CHECK(std::sqrt(error_twice / error_direct) < 1.1);
}
