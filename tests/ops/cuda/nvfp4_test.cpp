// NVFP4: casts are exact, codes, scales, counts and random bits; products as those of other scales.

#include <catch2/catch.hpp>

#include "ops/cast/quantize.h"
#include "ops/cuda/nvfp4_cases.h"

namespace fp8train::test {
namespace {

struct Extents {
  int64_t rows, columns;
};
constexpr Extents kExtents[] = {{37, 45}, {1, 5}, {130, 192}, {64, 32}};

/// The bytes of everything that a cast wrote and of what it is read as.
Bits run_cast(Side& side, const Array& x, const Extents& extents, const TensorFormat& format,
              ScaleLayout layout, bool columnwise) {
  Nvfp4Cast cast(side, x, extents.rows, extents.columns, format, layout, columnwise);
  Bits bits = cast.bits(side);
  const View y = side.space(DType::f32, cast.part().codes.shape);
  ops::dequantize(side.stream(), cast.part(), y);
  bits.add(side.get(y));
  return bits;
}

TEST_CASE("casts to NVFP4 on cuda have the bits of the cpu", "[cuda][blocks]") {
  const auto device = make_device(DeviceKind::cuda);
  for (const Extents& extents : kExtents) {
    for (const FloatType& type : kFloatTypes) {
      const Array x(type.dtype, {extents.rows, extents.columns},
                    random_values(extents.rows * extents.columns, 5, 3.0F));
      for (const TensorFormat& format : nvfp4_formats()) {
        for (const bool columnwise : {false, true}) {
          const ScaleLayout layout =
              extents.rows == 64 ? ScaleLayout::cublaslt : ScaleLayout::row_major;
          INFO(describe(format) << " of " << name_of(type.dtype) << " " << extents.rows << " x "
                                << extents.columns << ", columnwise " << columnwise);
          Side side(*device);
          const Bits expected = on_cpu(
              [&](Side& cpu) { return run_cast(cpu, x, extents, format, layout, columnwise); });
          CHECK(run_cast(side, x, extents, format, layout, columnwise) == expected);
        }
      }
    }
  }
}

TEST_CASE("infinities and NaN in NVFP4 on cuda have the bits of the cpu", "[cuda][blocks]") {
  const auto device = make_device(DeviceKind::cuda);
  for (const float special : {INFINITY, -INFINITY, NAN, 1e-42F, 0.0F}) {
    Array x(DType::f32, {32, 48}, random_values(32 * 48, 5));
    for (int64_t i = 0; i < x.count(); ++i) {
      x.set(i, i % 100 == 7 ? special : special == 0.0F ? 0.0F : x.get(i));
    }
    for (const TensorFormat& format : nvfp4_formats()) {
      INFO(describe(format) << " with " << special);
      Side side(*device);
      const auto run = [&](Side& on) {
        return run_cast(on, x, {32, 48}, format, ScaleLayout::row_major, true);
      };
      CHECK(run(side) == on_cpu(run));
    }
  }
}

}  // namespace
}  // namespace fp8train::test
