// Scaled GEMMs on other chips than the one at hand, and with a library that fails: the shim claims
// their compute capability. Only in the SHIM form.

#include <catch2/catch.hpp>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/input_file.h"
#include "base/log.h"
#include "cublaslt_fake.h"
#include "cuda_runtime_api.h"
#include "device/cuda/cuda_device.h"
#include "numeric/with_type.h"
#include "ops/cuda/scaled_gemm_support.h"
#include "ops/cuda/shim_chip.h"
#include "support/temp_dir.h"

namespace fp8train::test {
namespace {

constexpr ProductShape kShape = {132, 48, 160};

bool matches_cpu(Device& device, ScaledProduct& product, bool native) {
  Side side(device);
  const Array expected =
      on_cpu([&](Side& cpu) { return native ? product.run(cpu) : product.run_dequantized(cpu); });
  // The fake sums in fp32: only the order differs, and a bias is rounded to the type of c.
  const double of_bias = product.c.dtype() == DType::f32 ? 0.0 : 4 * product.rounding();
  const double tolerance = 1e-5 * static_cast<double>(product.shape.k) + of_bias;
  return worst_difference(product.run(side), expected, product.rounding(), tolerance) <= 1;
}

TEST_CASE("each chip multiplies natively what its tensor cores have", "[cuda][scaled_gemm]") {
  for (const int capability : {89, 90, 100}) {
    const Chip chip(capability);
    for (const FormatPair& formats : format_pairs()) {
      ScaledProduct product(formats, kShape, DType::f32, true);
      const bool mx = formats.a.block.as_stored() == per::block_1x32;
      const bool native =
          formats.a.dtype != DType::i8 && (mx ? capability >= 100 : capability == 90);
      INFO(product.name() << " on " << capability);
      CHECK(ops::gemm_support(chip.device->traits(), product.call()).native == native);
      CHECK(matches_cpu(*chip.device, product, native));
    }
  }
}

TEST_CASE("a dequantized product takes its memory from the caller, or without any from the device",
          "[cuda][scaled_gemm]") {
  const Chip chip(89);
  for (const DType c_type : {DType::bf16, DType::f16}) {
    ScaledProduct product({blockwise_format(DType::e5m2, per::block_1x128),
                           blockwise_format(DType::e4m3, per::block_128x128)},
                          kShape, c_type, false);
    Side side(*chip.device);
    ops::Gemm call = product.on(side);
    ops::gemm(side.stream(), call);
    const Array first = side.get(call.c);
    const auto before = shim::runtime_calls();
    const auto plans = shim::heuristics_asked();
    ops::gemm(side.stream(), call);
    CHECK(shim::heuristics_asked() == plans);
    CHECK(shim::runtime_calls().allocations == before.allocations);
    CHECK(shim::runtime_calls().synchronizations == before.synchronizations);
    CHECK(shim::runtime_calls().reads_back == before.reads_back);
    CHECK(same_values(side.get(call.c), first));
    call.scratch.shape = {call.scratch.count() - 1};
    CHECK_THROWS_AS(ops::gemm(side.stream(), call), InternalError);
    call.scratch = {};
    ops::gemm(side.stream(), call);
    CHECK(same_values(side.get(call.c), first));
    CHECK(shim::runtime_calls().allocations ==
          before.allocations + (c_type == DType::bf16 ? 1 : 0));
  }
}

TEST_CASE("native products of scaled operands keep their plan", "[cuda][scaled_gemm]") {
  ScaledProduct product(
      {blockwise_format(DType::e4m3, per::row), blockwise_format(DType::e4m3, per::row)}, kShape,
      DType::bf16, false);
  Side side(*cuda_device());
  const Array first = product.run(side);
  const auto plans = shim::heuristics_asked();
  CHECK(same_values(product.run(side), first));
  CHECK(shim::heuristics_asked() == plans);
}

TEST_CASE("products that are wrong count as missing", "[cuda][scaled_gemm]") {
  for (const int capability : {90, 100}) {
    const Chip chip(capability);
    const Fp8Products sound = chip.device->traits().fp8_products;
    ops::probe_gemms(*chip.device);
    CHECK(chip.device->traits().fp8_products == sound);
    shim::ignore_scales(true);
    ops::probe_gemms(*chip.device);
    CHECK(chip.device->traits().fp8_products == Fp8Products(Fp8Support::none));
  }
}

TEST_CASE("a mode that the library refuses counts as missing", "[cuda][scaled_gemm]") {
  const Chip chip(90);
  CHECK(chip.device->traits().fp8_products.has(ScalePair::row));
  shim::set_capability(89);  // the library knows less than we thought
  ops::probe_gemms(*chip.device);
  CHECK(chip.device->traits().fp8_products == cuda_traits(89).fp8_products);
  ScaledProduct product(
      {blockwise_format(DType::e4m3, per::row), blockwise_format(DType::e4m3, per::row)}, kShape,
      DType::f32, false);
  CHECK(matches_cpu(*chip.device, product, false));
}

bool is_wide(int32_t scales) {
  return scales == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
}

TEST_CASE("a refused product takes no other with it", "[cuda][scaled_gemm]") {
  using enum ScalePair;
  const Chip chip(90);
  Fp8Products expected = chip.device->traits().fp8_products;
  expected.set(block_128x128_1x128, Fp8Support::none);
  for (const DType c : FloatTypes::kTypes) {
    expected.set({block_1x128_128x128, DType::e5m2, DType::e4m3, c, false}, Fp8Support::none);
  }
  expected.set({row, DType::e4m3, DType::e4m3, DType::f32, true}, Fp8Support::none);
  shim::answer_products([](const shim::AskedProduct& asked) {
    const bool unused = is_wide(asked.a_scales);
    const bool gradient = is_wide(asked.b_scales) && asked.a == CUDA_R_8F_E5M2;
    const bool fast_row = asked.a_scales == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F &&
                          asked.fast_accumulate && asked.c == CUDA_R_32F && asked.a == asked.b;
    return unused || gradient || fast_row ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
  });
  ops::probe_gemms(*chip.device);
  CHECK(chip.device->traits().fp8_products == expected);

  const auto support = [&](DType a, ScaleBlock a_scales, ScaleBlock b_scales, DType c) {
    ScaledProduct product({blockwise_format(a, a_scales), blockwise_format(DType::e4m3, b_scales)},
                          kShape, c, false);
    ops::Gemm call = product.call();
    call.fast_accumulate = a_scales == per::row;
    const ops::GemmSupport found = ops::gemm_support(chip.device->traits(), call);
    CHECK(matches_cpu(*chip.device, product, found.native));
    return found;
  };
  constexpr ScaleBlock kNarrow = per::block_1x128;
  constexpr ScaleBlock kWide = per::block_128x128;
  CHECK(support(DType::e4m3, kNarrow, kWide, DType::bf16).native);
  CHECK(support(DType::e4m3, kNarrow, kNarrow, DType::f32).native);
  const auto refused = support(DType::e5m2, kNarrow, kWide, DType::bf16);
  CHECK(!refused.native);
  CHECK(refused.reason == "cuBLASLt does not multiply these types with these scales on this GPU");
  // Only the short accumulator is missing.
  CHECK(support(DType::e4m3, per::row, per::row, DType::f32).native);
  CHECK(!support(DType::e4m3, per::row, per::row, DType::f32).fast_accumulate);
  CHECK(support(DType::e4m3, per::row, per::row, DType::bf16).fast_accumulate);
}

TEST_CASE("each refusal is printed once, in words", "[cuda][scaled_gemm]") {
  const TempDir folder;
  const Chip chip(90);
  shim::answer_products([](const shim::AskedProduct& asked) {
    const bool row = asked.a_scales == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    const bool refused = is_wide(asked.a_scales)
                             ? asked.c != CUDA_R_32F
                             : row && asked.fast_accumulate && asked.a == CUDA_R_8F_E5M2;
    return refused ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
  });
  open_log_file((folder / "run.log").string());
  ops::probe_gemms(*chip.device);
  const std::string log = read_text_file(folder / "run.log", 1 << 16);
  CHECK(std::count(log.begin(), log.end(), '\n') == 2);
  CHECK_THAT(log, Catch::Contains("does not multiply e5m2 x e4m3 to fp32 with fast accumulation, "
                                  "e5m2 x e4m3 to bf16 with fast accumulation, e5m2 x e4m3 to fp16 "
                                  "with fast accumulation with row scales") &&
                      Catch::Contains("refused by the test; they run without fast accumulation"));
  CHECK_THAT(log, Catch::Contains("e4m3 x e4m3 to bf16, e4m3 x e4m3 to fp16, e5m2 x e4m3 to bf16, "
                                  "e5m2 x e4m3 to fp16, e4m3 x e5m2 to bf16, e4m3 x e5m2 to fp16 "
                                  "with 128x128 x 1x128 scales") &&
                      Catch::Contains("; their operands are dequantized instead"));
}

TEST_CASE("a product with one scale for each tensor runs without the short accumulator, or not",
          "[cuda][scaled_gemm]") {
  const Chip chip(89);
  bool all = false;
  shim::answer_products([&all](const shim::AskedProduct& asked) {
    const bool refused = asked.c == CUDA_R_16BF && (all || asked.fast_accumulate);
    return refused ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
  });
  Side side(*chip.device);
  const Array codes(DType::e4m3, {16, 16}, std::vector<float>(256, 1.0F));
  const Array c(DType::bf16, {16, 16}, std::vector<float>(256, 0.0F));
  const ops::Gemm call = {.a = {side.put(codes)}, .b = {side.put(codes), true}, .c = side.put(c)};
  REQUIRE(call.fast_accumulate);
  ops::probe_gemms(*chip.device);
  ops::gemm(side.stream(), call);
  CHECK(side.get(call.c).get(255) == 16.0F);
  all = true;
  ops::probe_gemms(*chip.device);
  CHECK_THROWS_WITH(ops::gemm(side.stream(), call), Catch::Contains("does not multiply"));
}

TEST_CASE("a GPU that fails is not taken for a library that refuses", "[cuda][scaled_gemm]") {
  const Chip chip(90);
  const DeviceTraits sound = chip.device->traits();
  SECTION("the library's kernel fails, and the GPU with it") {
    shim::answer_products([](const shim::AskedProduct& /*asked*/) {
      shim::break_gpu(cudaErrorIllegalAddress);
      return CUBLAS_STATUS_EXECUTION_FAILED;
    });
  }
  SECTION("the GPU fails without a word of the library") {
    shim::answer_products([](const shim::AskedProduct& /*asked*/) {
      shim::break_gpu(cudaErrorIllegalAddress);
      return CUBLAS_STATUS_SUCCESS;
    });
  }
  SECTION("the library has no memory") {
    shim::answer_products(
        [](const shim::AskedProduct& /*asked*/) { return CUBLAS_STATUS_ALLOC_FAILED; });
  }
  CHECK_THROWS_WITH(ops::probe_gemms(*chip.device),
                    Catch::Contains("the GPU fails at a first product of e4m3 x e4m3"));
  shim::break_gpu(cudaSuccess);
  CHECK(chip.device->traits() == sound);
}

TEST_CASE("a kernel that fails alone is a refusal", "[cuda][scaled_gemm]") {
  const Chip chip(90);
  shim::answer_products([](const shim::AskedProduct& asked) {
    return is_wide(asked.a_scales) ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
  });
  ops::probe_gemms(*chip.device);
  CHECK(!chip.device->traits().fp8_products.has(ScalePair::block_128x128_1x128));
  CHECK(chip.device->traits().fp8_products.has(ScalePair::block_1x128_1x128));
}

TEST_CASE("probing asks nothing of a chip without FP8", "[cuda][scaled_gemm]") {
  const Chip chip(89);
  chip.device->set_traits(cuda_traits(80));
  const auto before = shim::matmuls();
  ops::probe_gemms(*chip.device);
  CHECK(shim::matmuls() == before);
}

}  // namespace
}  // namespace fp8train::test
