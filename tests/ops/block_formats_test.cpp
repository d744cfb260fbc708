// Elements, blocks and types of scales that go together, and their products.

#include "ops/cast/block_formats.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "device/cuda/cuda_device.h"
#include "numeric/with_type.h"
#include "ops/gemm/gemm_support.h"

namespace fp8train::test::block_formats {
namespace {

TensorFormat scaled(DType type, ScaleBlock block, ScaleType scale_type) {
  TensorFormat format = plain(type);
  format.block = block;
  format.policy = ScalePolicy::current;
  format.scale_type = scale_type;
  return format;
}

}  // namespace

TEST_CASE("what a product reads, a cast makes, and it is a product with itself or a square's") {
  for (const ops::BlockFormat& line : ops::block_formats()) {
    for (const DType type : CodeTypes::kTypes) {
      for (const ScaleTypeFacts& known : kScaleTypeFacts) {
        const ScaleType scale_type = known.type;
        const TensorFormat format = scaled(type, line.block, scale_type);
        CAPTURE(describe(format));
        const bool multiplied = ops::why_not_multiplied(format).empty();
        CHECK((!multiplied || ops::why_not_cast(format).empty()));
        const bool has_product = std::ranges::any_of(ops::block_pairs(), [&](const ops::BlockPair&
                                                                                 pair) {
          const TensorFormat other = scaled(type, pair.b, scale_type);
          return pair.a == line.block && ops::gemm_support(DeviceTraits{}, {format, other}).native;
        });
        CHECK(has_product == multiplied);
      }
    }
  }
}

TEST_CASE("why a format is not cast or multiplied") {
  const TensorFormat by_64 = scaled(DType::e4m3, {1, 64}, ScaleType::f32);
  CHECK(ops::why_not_cast(by_64) ==
        "codes have scales for one of: tensor, row, 1x128, 128x128, 1x32, 32x32, 1x16, 16x16");
  const TensorFormat exponents = scaled(DType::e4m3, per::row, ScaleType::e8m0);
  CHECK(ops::why_not_cast(exponents) ==
        "scales for row are fp32 or pow2; e8m0 ones are for 1x32, 32x32");
  const ScaleBlock some[] = {per::row, per::block_1x32};
  CHECK(ops::why_not_cast(exponents, some) ==
        "scales for row are fp32 or pow2; e8m0 ones are for 1x32");
  CHECK(ops::why_not_cast(scaled(DType::e4m3, per::block_32x32, ScaleType::e8m0), some) ==
        "codes have scales for one of: row, 1x32");
  const TensorFormat integers = scaled(DType::i8, per::block_1x128, ScaleType::f32);
  CHECK(ops::why_not_cast(integers).empty());
  CHECK(ops::why_not_multiplied(integers) == "operands in int8 have scales for one of: row");
  CHECK(ops::why_not_multiplied(scaled(DType::bf16, per::row, ScaleType::f32)) ==
        "operands with scales are in one of: e4m3, e5m2, e2m1, int8");
  CHECK(
      ops::why_not_multiplied(scaled(DType::e4m3, per::block_1x32, ScaleType::pow2)) ==
      "scales for 1x32 are e8m0 or e8m0_floor or e8m0_even; pow2 ones are for tensor, row, 1x128, "
      "128x128");
  TensorFormat square = scaled(DType::e2m1, per::block_16x16, ScaleType::e4m3);
  CHECK(ops::why_not_multiplied(square).empty());
  square.hadamard = true;
  CHECK(ops::why_not_multiplied(square) == "hadamard goes with 1x16");
  TensorFormat mxfp4 = scaled(DType::e2m1, per::block_1x32, ScaleType::e8m0_floor);
  CHECK(ops::why_not_multiplied(mxfp4).empty());
  mxfp4.scale_type = ScaleType::e4m3;
  CHECK(ops::why_not_multiplied(mxfp4) ==
        "scales for 1x32 are e8m0 or e8m0_floor or e8m0_even; e4m3 ones are for 1x16, 16x16");
  mxfp4.block = per::row;
  CHECK(ops::why_not_multiplied(mxfp4) ==
        "operands in e2m1 have scales for one of: 1x32, 32x32, 1x16, 16x16");
}

TEST_CASE("no GPU is asked for a product that tensor cores do not have") {
  const TensorFormat gradient = scaled(DType::e5m2, per::tensor, ScaleType::f32);
  const ops::GemmFormats formats = {gradient, gradient};
  CHECK(ops::gemm_support(DeviceTraits{}, formats).native);
  const ops::GemmSupport on_gpu = ops::gemm_support(cuda_traits(90, 0), formats);
  CHECK_FALSE(on_gpu.native);
  CHECK_FALSE(on_gpu.dequantized);
  CHECK(on_gpu.reason == "tensor cores do not multiply e5m2 by e5m2");
}

}  // namespace fp8train::test::block_formats
