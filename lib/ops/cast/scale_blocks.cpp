#include "ops/cast/scale_blocks.h"

#include "base/error.h"
#include "base/math.h"
#include "numeric/convert.h"
#include "numeric/with_type.h"
#include "ops/cast/block_formats.h"

namespace fp8train::ops {
namespace {

/// The grid with the scales laid out as cuBLASLt's scale modes read them.
ScaleGrid for_cublaslt(ScaleGrid grid, ScaleBlock block) {
  if (block == per::block_1x128) {  // VEC128_32F: the scales of a column of blocks together
    grid.row_stride = 1;
    grid.column_stride = round_up(grid.rows, 4);
    grid.count = grid.columns * grid.column_stride;
  } else if (block == per::block_128x128) {  // BLK128x128_32F
    grid.row_stride = round_up(grid.columns, 4);
    grid.count = grid.rows * grid.row_stride;
  } else if (block == per::block_1x32 || block == per::block_1x16) {  // VEC32_UE8M0, VEC16_UE4M3
    grid.swizzled_tiles = ceil_div(grid.columns, 4);
    grid.count = ceil_div(grid.rows, 128) * grid.swizzled_tiles * 512;
  }
  return grid;
}

float largest_number(DType input) {
  FloatTypes::check(input);
  return input == DType::f32 ? kMaxF32 : input == DType::bf16 ? float_of(0x7F7F0000U) : kMaxF16;
}

}  // namespace

ScaleGrid block_grid(ScaleBlock block, int64_t rows, int64_t columns) {
  const int64_t height = block.rows == 0 ? rows : block.rows;
  const int64_t width = block.columns == 0 ? columns : block.columns;
  const int64_t across = columns == 0 ? 0 : ceil_div(columns, width);
  const int64_t down = rows == 0 ? 0 : ceil_div(rows, height);
  return {.height = height,
          .width = width,
          .rows = down,
          .columns = across,
          .row_stride = across,
          .column_stride = 1,
          .count = down * across,
          .swizzled_tiles = 0};
}

ScaleGrid scale_grid(ScaleBlock block, int64_t rows, int64_t columns, ScaleLayout layout) {
  const ScaleGrid grid = block_grid(block.as_stored(), rows, columns);
  return layout == ScaleLayout::cublaslt ? for_cublaslt(grid, block.as_stored()) : grid;
}

void check_blockwise_format(const TensorFormat& format) {
  check(format.block != per::tensor, "blocks: the format has one scale for the tensor");
  if (const std::string why = why_not_cast(format); !why.empty()) {
    throw InternalError("blocks: " + why);
  }
}

void check_blockwise(const Encoded& view, const Shape& shape) {
  const TensorFormat& format = view.format;
  check(view.codes.shape == shape && view.codes.dtype == format.dtype,
        "blocks: codes must be a matrix of the format's type");
  check(view.scales.dtype == dtype_of(format.scale_type),
        "blocks: scales must be of the type that the format says");
  check(view.scales.count() ==
                scale_grid(format.block, shape.rows(), shape.back(), view.layout).count &&
            !view.scales.empty(),
        "blocks: wrong number of scales");
}

BlockRule block_rule(const TensorFormat& format, DType input) {
  BlockRule rule = {format_max(format.dtype), format.amax_epsilon, largest_number(input), false,
                    false};
  switch (format.scale_type) {
    case ScaleType::f32:
      return rule;
    case ScaleType::pow2:
      rule.pow2 = true;
      return rule;
    case ScaleType::e8m0_even:
      decltype(Fp8Types{} + TypeList<e2m1>{})::with(format.dtype, [&](auto tag) {
        rule.carry = e8m0_carry(FormatLayout<typename decltype(tag)::Type>::kMantissaBits);
      });
      [[fallthrough]];
    case ScaleType::e8m0_floor:
      rule.down = true;
      [[fallthrough]];
    case ScaleType::e8m0:
      rule.e8m0 = true;
      return rule;
    case ScaleType::e4m3:
    case ScaleType::e4m3_4over6:
    case ScaleType::e4m3_4over6_mse:
    case ScaleType::e4m3_4over6_448:
    case ScaleType::e4m3_4over6_448_mse:
      break;
  }
  throw InternalError("blocks: scales under a scale of the tensor have a rule of their own");
}

BlockScales block_scales(const Encoded& view, const TensorFormat& format, ScaleLayout layout) {
  const Shape shape = view.codes.empty() ? Shape{0, 0} : view.codes.shape;
  BlockScales scales = block_scales(view.scales, format, layout, shape);
  scales.scale = format.is_two_level() ? nullptr : view.cast_scales;
  return scales;
}

BlockScales block_scales(const View& scales, const TensorFormat& format, ScaleLayout layout,
                         const Shape& shape) {
  const DType type = dtype_of(format.scale_type);
  check(type == DType::f32 || type == DType::e8m0 || type == DType::e4m3,
        "blocks: no kernel reads scales of this type");
  return {.grid = scale_grid(format.block, shape.rows(), shape.back(), layout),
          .scale = nullptr,
          .scale_inv = type == DType::f32 ? scales.as<float>() : nullptr,
          .exponents = type == DType::e8m0 ? scales.as<e8m0>() : nullptr,
          .under = type == DType::e4m3 ? scales.as<e4m3>() : nullptr};
}

}  // namespace fp8train::ops
