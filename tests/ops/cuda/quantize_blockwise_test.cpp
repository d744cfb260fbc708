// Casts with a scale for each block: exact, codes, scales and counts. Scales come from the same
// functions, codes as in quantize_test.cpp.

#include <catch2/catch.hpp>

#include "ops/blockwise_cases.h"
#include "ops/cast/quantize.h"
#include "ops/cuda/cuda_test_support.h"
#include "support/sanitized.h"

namespace fp8train::test {
namespace {

struct Wanted {
  bool rowwise, columnwise, statistics, scale, amax;
};

Encoded make_orientation(Side& side, const TensorFormat& format, ScaleLayout layout, int64_t rows,
                         int64_t columns, bool scale, int64_t offset) {
  const int64_t count = ops::scale_grid(format.block, rows, columns, layout).count;
  const View codes = side.space(format.dtype, {rows, columns}, offset);
  const View scales = side.space(dtype_of(format.scale_type), {count});
  return with_cast_scales(codes, format, scales,
                          scale ? side.space(DType::f32, {count}).as<float>() : nullptr, layout);
}

/// The bytes of everything that a cast wrote, and of what it left alone.
Bits run_cast(Side& side, const Array& x, const Extents& extents, const TensorFormat& format,
              ScaleLayout layout, const Wanted& wanted, int64_t offset) {
  const bool scale = wanted.scale || format.block == per::row;
  QuantizedTensor out;
  if (wanted.rowwise) {
    out.rowwise =
        make_orientation(side, format, layout, extents.rows, extents.columns, scale, offset);
  }
  if (wanted.columnwise) {
    out.columnwise =
        make_orientation(side, format, layout, extents.columns, extents.rows, scale, offset);
  }
  auto* statistics = wanted.statistics ? side.put_value(ops::QuantizeStatistics{9, 9, 9}) : nullptr;
  float* amax = wanted.amax ? side.put_value(0.25F) : nullptr;
  const View values = side.put(x, offset);
  if (format.block == per::row && extents.rows % 2 == 0) {
    ops::quantize(side.stream(), values, out, amax, nullptr, {.step = CastStep::amax});
    ops::quantize(side.stream(), values, out, amax, statistics, {.step = CastStep::codes});
  } else {
    ops::quantize(side.stream(), values, out, amax, statistics);
  }
  Bits bits;
  if (amax != nullptr) {
    bits.add_value(side.get_value(amax));
  }
  for (const Encoded& view : {out.rowwise, out.columnwise}) {
    if (!view.codes.empty()) {
      bits.add(side.get(view.codes));
      bits.add(side.get(view.scales));
      if (view.cast_scales != nullptr) {
        bits.add(side.get(ConstView{view.cast_scales, DType::f32, view.scales.shape}));
      }
    }
  }
  if (statistics != nullptr) {
    bits.add_value(side.get_value(statistics));
  }
  return bits;
}

constexpr Wanted kWanted[] = {{true, true, false, true, true},
                              {true, true, true, false, false},
                              {true, false, false, false, true},
                              {false, true, false, true, true},
                              {false, true, true, true, true}};

TEST_CASE("quantize_blockwise is exact for every format, shape and alignment", "[cuda][blocks]") {
  size_t index = 0;
  for (const TensorFormat& format : blockwise_formats()) {
    for (const FloatType& type : kFloatTypes) {
      for (const Extents& extents : kBlockExtents) {
        const Array x(type.dtype, {extents.rows, extents.columns},
                      block_values(extents, 5, extents.rows % 2 == 0));
        // Eight shapes and five requests: a format meets every pair of layout and alignment.
        for (const Wanted& wanted : kWanted) {
          const ScaleLayout layout = kScaleLayouts[index % 2];
          const int64_t offset = index % 3 == 2 ? 1 : 0;
          if (!is_in_rotation(index++)) {
            continue;
          }
          INFO(describe(format) << " of " << name_of(type.dtype) << ", " << extents.rows << " x "
                                << extents.columns << ", layout " << static_cast<int>(layout)
                                << ", from " << offset << ", " << wanted.rowwise
                                << wanted.columnwise << wanted.statistics);
          const auto run = [&](Side& side) {
            return run_cast(side, x, extents, format, layout, wanted, offset);
          };
          CHECK(on_cuda(run) == on_cpu(run));
        }
      }
    }
  }
}

TEST_CASE("quantize_blockwise is exact for infinities and NaN", "[cuda][blocks][small]") {
  const Extents extents = {264, 272};
  size_t index = 0;
  for (const TensorFormat& format : blockwise_formats()) {
    for (const FloatType& type : kFloatTypes) {
      for (const uint32_t seed : {1, 2}) {
        if (!is_in_rotation(index++, 5)) {
          continue;
        }
        const Array x(type.dtype, {extents.rows, extents.columns},
                      seed == 1 ? block_values(extents, seed, false)
                                : adversarial_values(extents.rows * extents.columns, seed));
        INFO(describe(format) << " of " << name_of(type.dtype));
        const auto run = [&](Side& side) {
          return run_cast(side, x, extents, format, ScaleLayout::row_major, kWanted[seed - 1], 0);
        };
        CHECK(on_cuda(run) == on_cpu(run));
      }
    }
  }
}

TEST_CASE("dequantize_blockwise is exact", "[cuda][blocks]") {
  for (const TensorFormat& format : blockwise_formats()) {
    for (const ScaleLayout layout : kScaleLayouts) {
      for (const auto& [rows, columns] : kBlockExtents) {
        const int64_t count = ops::scale_grid(format.block, rows, columns, layout).count;
        const bool e8m0_scales = dtype_of(format.scale_type) == DType::e8m0;
        Array codes(format.dtype, {rows, columns});
        for (int64_t i = 0; i < codes.count(); ++i) {
          codes.as<uint8_t>()[i] = static_cast<uint8_t>(i);
        }
        Array scale_inv(DType::f32, {count}, random_values(count, 6));
        if (e8m0_scales) {
          scale_inv = Array(DType::e8m0, {count});
          for (int64_t i = 0; i < count; ++i) {
            scale_inv.as<uint8_t>()[i] = static_cast<uint8_t>(i * 37);
          }
        }
        for (const FloatType& type : kFloatTypes) {
          const auto run = [&, rows = rows, columns = columns](Side& side) {
            const View y = side.space(type.dtype, {rows, columns});
            const Encoded x = {side.put(codes), format, side.put(scale_inv), layout};
            ops::dequantize(side.stream(), x, y);
            return side.get(y);
          };
          INFO(describe(format) << " to " << name_of(type.dtype) << ", " << rows << " x "
                                << columns);
          CHECK(same_values(on_cuda(run), on_cpu(run)));
        }
      }
    }
  }
}

}  // namespace
}  // namespace fp8train::test
