// Scaled GEMMs on the cuda device against the cpu: natively where the device has the scale mode,
// else from dequantized operands.

#include "ops/gemm/gemm_support.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "ops/cuda/cuda_test_support.h"
#include "ops/cuda/scaled_gemm_support.h"
#include "ops/gemm/gemm.h"

namespace fp8train::test {
namespace {

TEST_CASE("scaled GEMMs match the cpu", "[cuda][scaled_gemm]") {
  const auto device = make_device(DeviceKind::cuda);
  ops::probe_gemms(*device);  // which extents this library takes
  check_scaled_gemms(*device);
}

TEST_CASE("a NaN scale on cuda reaches the rows of its block and no others",
          "[cuda][scaled_gemm]") {
  for (const FormatPair& formats : format_pairs()) {
    ScaledProduct product(formats, {144, 48, 288}, DType::f32, false);
    product.spoil_scale(1, 2);
    INFO(product.name());
    const Array c = on_cuda([&](Side& side) { return product.run(side); });
    bool right = true;
    for (int64_t i = 0; i < c.count(); ++i) {
      right &= std::isnan(c.get(i)) == (i / 48 / product.a.grid.height == 1);
    }
    CHECK(right);
  }
}

TEST_CASE("probing a sound device loses no product, and gives its memory back",
          "[cuda][scaled_gemm]") {
  const auto device = make_device(DeviceKind::cuda);
  const Fp8Products before = device->traits().fp8_products;
  const size_t bytes = device->ledger().total();
  ops::probe_gemms(*device);
  for (size_t i = 0; i < kScalePairs; ++i) {
    CHECK(device->traits().fp8_products.has(static_cast<ScalePair>(i)) ==
          before.has(static_cast<ScalePair>(i)));
  }
  CHECK(device->ledger().total() == bytes);
}

}  // namespace
}  // namespace fp8train::test
