// Casts of parts of a matrix: together they give the codes and scales of a cast of the whole,
// exactly, wherever it is cut.

#include "ops/cast/blockwise_parts.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "numeric/convert.h"
#include "ops/blockwise_cases.h"

using namespace fp8train;
using namespace fp8train::test;

namespace {

DType scale_type(const TensorFormat& format) {
  return dtype_of(format.scale_type);
}

/// Where parts begin, and the end: in the middle of rows and blocks, one part empty.
std::vector<int64_t> cuts_of(int64_t count) {
  return {0, count / 5, count / 5, count * 2 / 3 / 128 * 128 + count / 5 % 7, count};
}

/// Maxima of all parts, as ranks would combine them.
Array combined_amax(Array& x, const Shape& matrix, ScaleBlock shared,
                    const std::vector<int64_t>& cuts) {
  const int64_t blocks = ops::block_grid(shared, matrix.rows(), matrix.back()).count;
  Array all(DType::f32, {blocks});
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    Array own(DType::f32, {blocks}, std::vector<float>(static_cast<size_t>(blocks), 7.0F));
    ops::blockwise_part_amax(
        cpu_stream(),
        {{x.as<float>() + cuts[i], DType::f32, {cuts[i + 1] - cuts[i]}}, cuts[i], matrix}, shared,
        own);
    for (int64_t block = 0; block < blocks; ++block) {
      const float here = own.get(block);
      if (std::isnan(here) || here > all.get(block)) {
        all.set(block, here);
      }
    }
  }
  return all;
}

}  // namespace

TEST_CASE("parts of a matrix are cast as the whole is", "[blocks][blockwise_parts]") {
  for (const TensorFormat& format : blockwise_formats()) {
    for (const Extents& extents : kBlockExtents) {
      for (const ScaleLayout layout : kScaleLayouts) {
        INFO(describe(format) << ", " << extents.rows << " x " << extents.columns);
        const Shape matrix = {extents.rows, extents.columns};
        const Shape transposed_shape = {extents.columns, extents.rows};
        const bool squares = format.block.is_square();
        Array x(DType::f32, matrix, block_values(extents, 3, false));

        const auto scales_of = [&](const Shape& shape) {
          return Array(scale_type(format),
                       {ops::scale_grid(format.block, shape.rows(), shape.back(), layout).count});
        };
        Array whole(format.dtype, matrix);
        Array whole_scales = scales_of(matrix);
        Array scratch(DType::f32, {whole_scales.count()});
        Array whole_columnwise(format.dtype, transposed_shape);
        Array columnwise_scales = scales_of(transposed_shape);
        QuantizedTensor out = {
            with_cast_scales(whole, format, whole_scales, scratch.as<float>(), layout)};
        if (squares) {
          out.columnwise = {whole_columnwise, format, columnwise_scales, layout};
        }
        ops::QuantizeStatistics expected = {};
        ops::quantize(cpu_stream(), x, out, nullptr, &expected);

        const std::vector<int64_t> cuts = cuts_of(matrix.count());
        Array amax = combined_amax(x, matrix, format.block, cuts);
        Array codes(format.dtype, matrix);
        ops::QuantizeStatistics counted = {};
        for (size_t i = 0; i + 1 < cuts.size(); ++i) {
          const Shape part = {cuts[i + 1] - cuts[i]};
          ops::QuantizeStatistics here = {5, 5, 5};
          ops::quantize_blockwise_part(
              cpu_stream(), {.x = {{x.as<float>() + cuts[i], DType::f32, part}, cuts[i], matrix},
                             .format = format,
                             .amax = amax,
                             .codes = {codes.as<uint8_t>() + cuts[i], format.dtype, part},
                             .rounded = {},
                             .statistics = &here});
          counted.count += here.count;
          counted.saturated += here.saturated;
          counted.underflow += here.underflow;
        }
        Array scales = scales_of(matrix);
        ops::find_block_scales(cpu_stream(), {.amax = amax,
                                              .shape = matrix,
                                              .format = format,
                                              .layout = layout,
                                              .transposed = false,
                                              .scales = scales});

        CHECK(codes.bytes() == whole.bytes());
        CHECK(scales.bytes() == whole_scales.bytes());
        CHECK(counted.count == expected.count);
        CHECK(counted.saturated == expected.saturated);
        CHECK(counted.underflow == expected.underflow);
        if (squares) {
          Array transposed(format.dtype, transposed_shape);
          ops::transpose_codes(cpu_stream(), codes, transposed);
          Array scales_transposed = scales_of(transposed_shape);
          ops::find_block_scales(cpu_stream(), {.amax = amax,
                                                .shape = matrix,
                                                .format = format,
                                                .layout = layout,
                                                .transposed = true,
                                                .scales = scales_transposed});
          CHECK(transposed.bytes() == whole_columnwise.bytes());
          CHECK(scales_transposed.bytes() == columnwise_scales.bytes());
        }
      }
    }
  }
}

TEST_CASE("rounded values are what the codes of a part stand for", "[blocks][blockwise_parts]") {
  for (const TensorFormat& format : blockwise_formats()) {
    INFO(describe(format));
    const Extents extents = {144, 264};
    const Shape matrix = {extents.rows, extents.columns};
    Array x(DType::f32, matrix, block_values(extents, 4, true));
    Array amax = combined_amax(x, matrix, format.block, {0, matrix.count()});
    Array codes(format.dtype, matrix);
    Array rounded(DType::f32, matrix);
    ops::quantize_blockwise_part(
        cpu_stream(),
        {.x = {x, 0, matrix}, .format = format, .amax = amax, .codes = codes, .rounded = rounded});
    Array scales(scale_type(format), {ops::scale_grid(format.block, extents.rows, extents.columns,
                                                      ScaleLayout::row_major)
                                          .count});
    ops::find_block_scales(cpu_stream(), {.amax = amax,
                                          .shape = matrix,
                                          .format = format,
                                          .layout = ScaleLayout::row_major,
                                          .transposed = false,
                                          .scales = scales});
    Array values(DType::f32, matrix);
    ops::dequantize(cpu_stream(), {codes, format, scales}, values);
    CHECK(rounded.bytes() == values.bytes());
  }
}
