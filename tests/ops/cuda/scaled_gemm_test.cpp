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

// Pieces of blocks and of cuBLASLt's paddings left over; M odd and K not of whole blocks; shapes
// that no tensor core takes.
constexpr ProductShape kShapes[] = {{260, 144, 288}, {33, 32, 80}, {20, 12, 30}};

TEST_CASE("scaled GEMMs match the cpu", "[cuda][scaled_gemm]") {
  const DeviceTraits& traits = cuda_device()->traits();
  size_t index = 0;
  for (const FormatPair& formats : format_pairs()) {
    for (const ProductShape& shape : kShapes) {
      const DType c_type = kFloatTypes[index++ % 3].dtype;
      ScaledProduct product(formats, shape, c_type, index % 2 == 0);
      INFO(product.name());
      const auto run = [&](Side& side) { return product.run(side); };
      const bool native = ops::gemm_support(traits, product.call()).native;
      const Array expected =
          native ? on_cpu(run) : on_cpu([&](Side& side) { return product.run_dequantized(side); });
      CHECK(worst_difference(on_cuda(run), expected, product.rounding(), product.tolerance()) <= 1);
    }
  }
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

TEST_CASE("probing leaves a sound device as it is, and gives its memory back",
          "[cuda][scaled_gemm]") {
  const auto device = make_device(DeviceKind::cuda);
  const DeviceTraits before = device->traits();
  const size_t bytes = device->ledger().total();
  ops::probe_gemms(*device);
  CHECK(device->traits() == before);
  CHECK(device->ledger().total() == bytes);
}

}  // namespace
}  // namespace fp8train::test
