// Casts of parts in two steps: with the largest magnitudes of all parts between them, each part has
// the codes and the scales that the whole gives it.

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "ops/fp4_cases.h"

namespace fp8train::test {
namespace {

constexpr int64_t kRows = 96, kColumns = 192;
constexpr int kRanks = 2;

TensorFormat by_row(DType code, ScaleType scale_type) {
  TensorFormat format = plain(code);
  format.block = per::row;
  format.policy = ScalePolicy::current;
  format.scale_type = scale_type;
  return format;
}

TensorFormat row_scaled(bool hadamard) {
  TensorFormat format = fp4(per::block_1x16, hadamard, Rounding::stochastic);
  format.row_scaled = true;
  return format;
}

/// A cast of x in one orientation, by quantize() or step by step.
struct Cast {
  Cast(Array& values, const TensorFormat& wanted, bool columnwise)
      : x(&values),
        format(wanted),
        lines(ConstView(values).shape[columnwise ? 1 : 0]),
        depth(ConstView(values).shape[columnwise ? 0 : 1]),
        codes(format.dtype, {lines, depth}),
        scale_inv(dtype_of(format.scale_type),
                  {ops::scale_grid(format.block, lines, depth, ScaleLayout::row_major).count}),
        of_lines(DType::f32, {lines}) {
    part = {codes, format, scale_inv};
    if (format.row_scaled) {
      part.row_scales = of_lines.as<float>();
    } else if (format.block == per::row) {
      part.cast_scales = of_lines.as<float>();
    } else {
      part.cast_scales = &scale;
      part.tensor_scale = &inverse;
    }
    (columnwise ? out.columnwise : out.rowwise) = part;
  }

  View magnitudes() {
    return part.tensor_scale == nullptr ? View(of_lines) : View{&inverse, DType::f32, {1}};
  }

  /// The decoded codes.
  Array decoded() {
    Array y(DType::f32, {lines, depth});
    ops::dequantize(cpu_stream(), part, y);
    return y;
  }

  Array* x;
  TensorFormat format;
  int64_t lines, depth;
  Array codes, scale_inv, of_lines;
  float scale = 0.0F, inverse = 0.0F;
  Encoded part;
  QuantizedTensor out;
};

/// The elements of an extent that a rank has of two pieces, a third and two thirds of it.
std::vector<int64_t> elements_of(int64_t extent, int rank, ExtentMap& map) {
  std::vector<int64_t> elements;
  for (const int64_t piece : {extent / 3, extent * 2 / 3}) {
    const int64_t own = piece / kRanks;
    map.begins[map.runs] = static_cast<int64_t>(elements.size());
    map.before[map.runs++] = map.whole + rank * own - static_cast<int64_t>(elements.size());
    for (int64_t i = 0; i < own; ++i) {
      elements.push_back(map.whole + rank * own + i);
    }
    map.whole += piece;
  }
  return elements;
}

std::vector<int64_t> all_of(int64_t extent) {
  std::vector<int64_t> elements;
  for (int64_t i = 0; i < extent; ++i) {
    elements.push_back(i);
  }
  return elements;
}

/// Whether scales of lines that no cut meets are each rank's own.
bool agrees(const TensorFormat& format, bool cuts_lines) {
  return !cuts_lines || (format.block != per::row && !format.row_scaled);
}

TEST_CASE("parts that are cast in two steps have the codes of the whole") {
  const TensorFormat formats[] = {
      by_row(DType::e4m3, ScaleType::pow2),
      by_row(DType::i8, ScaleType::f32),
      fp4(per::block_1x16),
      fp4(per::block_16x16),
      fp4(per::block_1x16, true),
      fp4(per::block_1x16, true, Rounding::stochastic),
      fp4(per::block_1x16, false, Rounding::nearest_even, ScaleType::e4m3_4over6),
      row_scaled(false),
      row_scaled(true)};
  const bool columnwise = GENERATE(false, true);
  const bool cuts_rows = GENERATE(false, true);
  const float special = GENERATE(3.0F, 0.0F, INFINITY);
  for (const TensorFormat& format : formats) {
    INFO(describe(format) << ", columnwise " << columnwise << ", rows are cut " << cuts_rows
                          << ", with " << special);
    Array x(DType::bf16, {kRows, kColumns}, random_values(kRows * kColumns, 7));
    for (int64_t i = 0; i < x.count(); ++i) {  // one line of each orientation has its largest here
      x.set(i, i == 5 ? 40.0F * special : special == 0.0F ? 0.0F : x.get(i));
    }
    const uint64_t pass = 3;
    const ops::CastOptions random = {.seed = 1, .pass = &pass, .tensor = 5};
    Cast whole(x, format, columnwise);
    ops::quantize(cpu_stream(), x, whole.out, nullptr, nullptr, random);
    const Array expected = whole.decoded();

    std::vector<Array> of_rank;
    std::vector<Cast> casts;
    std::vector<std::vector<int64_t>> rows, columns;
    std::vector<ops::CastOptions> draws(kRanks, random);
    of_rank.reserve(kRanks);
    casts.reserve(kRanks);
    for (int rank = 0; rank < kRanks; ++rank) {
      ops::CastOptions& draw = draws[static_cast<size_t>(rank)];
      rows.push_back(cuts_rows ? elements_of(kRows, rank, draw.rows) : all_of(kRows));
      columns.push_back(cuts_rows ? all_of(kColumns) : elements_of(kColumns, rank, draw.columns));
      const auto height = static_cast<int64_t>(rows.back().size());
      const auto width = static_cast<int64_t>(columns.back().size());
      Array& part = of_rank.emplace_back(DType::bf16, Shape{height, width});
      for (int64_t i = 0; i < part.count(); ++i) {
        part.set(i, x.get(rows.back()[static_cast<size_t>(i / width)] * kColumns +
                          columns.back()[static_cast<size_t>(i % width)]));
      }
      Cast& cast = casts.emplace_back(part, format, columnwise);
      draw.step = CastStep::amax;
      ops::quantize(cpu_stream(), part, cast.out, nullptr, nullptr, draw);
    }
    if (agrees(format, cuts_rows != columnwise)) {
      auto* const first = casts[0].magnitudes().as<float>();
      auto* const second = casts[1].magnitudes().as<float>();
      for (int64_t i = 0; i < casts[0].magnitudes().count(); ++i) {
        first[i] = second[i] = std::max(first[i], second[i]);
      }
    }
    size_t different = 0;
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto r = static_cast<size_t>(rank);
      Cast& cast = casts[r];
      draws[r].step = CastStep::codes;
      ops::quantize(cpu_stream(), of_rank[r], cast.out, nullptr, nullptr, draws[r]);
      const Array found = cast.decoded();
      for (int64_t i = 0; i < found.count(); ++i) {
        const auto line = static_cast<size_t>(i / cast.depth);
        const auto k = static_cast<size_t>(i % cast.depth);
        const int64_t row = rows[r][columnwise ? k : line];
        const int64_t column = columns[r][columnwise ? line : k];
        const int64_t at = columnwise ? column * kRows + row : row * kColumns + column;
        different += bits_of(found.get(i)) != bits_of(expected.get(at)) ? 1U : 0U;
      }
    }
    CHECK(different == 0);
  }
}

}  // namespace
}  // namespace fp8train::test
