// Scaled GEMMs on other chips than the one at hand, and with a library that fails: the shim claims
// their compute capability. Only in the SHIM form.

#include <catch2/catch.hpp>

#include "base/error.h"
#include "cublaslt_fake.h"
#include "cuda_runtime_api.h"
#include "device/cuda/cuda_device.h"
#include "ops/cuda/scaled_gemm_support.h"

namespace fp8train::test {
namespace {

/// The shim as another chip.
class Chip {
 public:
  explicit Chip(int capability) {
    shim::set_capability(capability);
    device = make_device(DeviceKind::cuda);
  }
  ~Chip() {
    device.reset();
    shim::set_capability(90);
    shim::ignore_scales(false);
  }
  Chip(const Chip&) = delete;
  Chip& operator=(const Chip&) = delete;

  std::unique_ptr<Device> device;
};

constexpr ProductShape kShape = {132, 48, 160};

bool matches_cpu(Device& device, ScaledProduct& product, bool native) {
  Side side(device);
  const Array expected =
      on_cpu([&](Side& cpu) { return native ? product.run(cpu) : product.run_dequantized(cpu); });
  // The fake sums in fp32: only the order differs.
  const double tolerance = 1e-5 * static_cast<double>(kShape.k);
  return worst_difference(product.run(side), expected, product.rounding(), tolerance) <= 1;
}

TEST_CASE("each chip multiplies natively what its tensor cores have", "[cuda][scaled_gemm]") {
  for (const int capability : {89, 90, 100, 120}) {
    const Chip chip(capability);
    for (const FormatPair& formats : format_pairs()) {
      ScaledProduct product(formats, kShape, DType::f32, true);
      const bool mx = formats.a.granularity == Granularity::block_1x32;
      const bool native =
          formats.a.dtype != DType::i8 && (mx ? capability >= 100 : capability == 90);
      INFO(product.name() << " on " << capability);
      CHECK(ops::scaled_gemm_support(chip.device->traits(), product.call()).native == native);
      CHECK(matches_cpu(*chip.device, product, native));
    }
  }
}

TEST_CASE("a dequantized product takes its memory from the caller alone", "[cuda][scaled_gemm]") {
  const Chip chip(89);
  for (const DType c_type : {DType::bf16, DType::f16}) {
    ScaledProduct product({granule_format(DType::e5m2, Granularity::block_1x128),
                           granule_format(DType::e4m3, Granularity::block_128x128)},
                          kShape, c_type, false);
    Side side(*chip.device);
    ops::ScaledGemm call = product.on(side);
    ops::scaled_gemm(side.stream(), call);
    const Array first = side.get(call.c);
    const auto before = shim::runtime_calls();
    const auto plans = shim::heuristics_asked();
    ops::scaled_gemm(side.stream(), call);
    CHECK(shim::heuristics_asked() == plans);
    CHECK(shim::runtime_calls().allocations == before.allocations);
    CHECK(shim::runtime_calls().synchronizations == before.synchronizations);
    CHECK(shim::runtime_calls().reads_back == before.reads_back);
    CHECK(same_values(side.get(call.c), first));
    call.scratch.shape = {call.scratch.count() - 1};
    CHECK_THROWS_AS(ops::scaled_gemm(side.stream(), call), InternalError);
    call.scratch = {};
    CHECK_THROWS_AS(ops::scaled_gemm(side.stream(), call), InternalError);
  }
}

TEST_CASE("native products of scaled operands keep their plan", "[cuda][scaled_gemm]") {
  ScaledProduct product({granule_format(DType::e4m3, Granularity::row),
                         granule_format(DType::e4m3, Granularity::row)},
                        kShape, DType::bf16, false);
  Side side(*cuda_device());
  const Array first = product.run(side);
  const auto plans = shim::heuristics_asked();
  CHECK(same_values(product.run(side), first));
  CHECK(shim::heuristics_asked() == plans);
}

TEST_CASE("a mode that gives a wrong product counts as missing", "[cuda][scaled_gemm]") {
  for (const int capability : {90, 100}) {
    const Chip chip(capability);
    const DeviceTraits sound = chip.device->traits();
    ops::probe_scaled_gemm(*chip.device);
    CHECK(chip.device->traits() == sound);
    shim::ignore_scales(true);
    ops::probe_scaled_gemm(*chip.device);
    CHECK(!chip.device->traits().row_scaled_gemm);
    CHECK(!chip.device->traits().block_scaled_gemm);
    CHECK(!chip.device->traits().mx_scaled_gemm);
  }
}

TEST_CASE("a mode that the library refuses counts as missing", "[cuda][scaled_gemm]") {
  const Chip chip(90);
  CHECK(chip.device->traits().row_scaled_gemm);
  shim::set_capability(89);  // the library knows less than we thought
  ops::probe_scaled_gemm(*chip.device);
  CHECK(!chip.device->traits().row_scaled_gemm);
  CHECK(!chip.device->traits().block_scaled_gemm);
  ScaledProduct product({granule_format(DType::e4m3, Granularity::row),
                         granule_format(DType::e4m3, Granularity::row)},
                        kShape, DType::f32, false);
  CHECK(matches_cpu(*chip.device, product, false));
}

TEST_CASE("probing asks nothing of a chip without FP8", "[cuda][scaled_gemm]") {
  const Chip chip(80);
  const auto before = shim::matmuls();
  ops::probe_scaled_gemm(*chip.device);
  CHECK(shim::matmuls() == before);
}

}  // namespace
}  // namespace fp8train::test
