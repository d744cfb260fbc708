// Products that a release of cuBLASLt refuses for some shapes only, or computes wrongly. Only in
// the SHIM form.

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/input_file.h"
#include "base/log.h"
#include "cublaslt_fake.h"
#include "cublaslt_faults.h"
#include "cuda_runtime_api.h"
#include "device/cuda/cuda_device.h"
#include "ops/cuda/scaled_gemm_support.h"
#include "ops/cuda/shim_chip.h"
#include "support/temp_dir.h"

namespace fp8train::test {
namespace {

const FormatPair kRows = {blockwise_format(DType::e4m3, per::row),
                          blockwise_format(DType::e4m3, per::row)};

double worst(ScaledProduct& product, const Array& got) {
  const Array expected = on_cpu([&](Side& cpu) { return product.run_dequantized(cpu); });
  return worst_difference(got, expected, product.rounding(), product.tolerance());
}

/// The lines of the log that `work` writes.
template <typename Work>
std::string log_of(const Work& work) {
  const TempDir folder;
  open_log_file((folder / "run.log").string());
  work();
  return read_text_file(folder / "run.log", 1 << 16);
}

TEST_CASE("scaled GEMMs match the cpu whatever the library takes M and N in multiples of",
          "[cuda][scaled_gemm]") {
  using enum ScalePair;
  const std::pair<int64_t, Fp8Support> libraries[] = {{4, Fp8Support::any},
                                                      {8, Fp8Support::by_8},
                                                      {16, Fp8Support::by_16},
                                                      {128, Fp8Support::by_128}};
  std::vector<FormatPair> pairs = format_pairs();
  std::erase_if(pairs, [](const FormatPair& pair) {
    return pair.a.block != per::block_1x128 && pair.b.block != per::block_1x128;
  });
  for (const auto& [multiple, support] : libraries) {
    CAPTURE(multiple);
    const Chip chip(90);
    Fp8Products expected = chip.device->traits().fp8_products;
    for (const ScalePair pair : {block_1x128_1x128, block_1x128_128x128, block_128x128_1x128}) {
      expected.set(pair, support);
    }
    shim::faults().vector_multiple = multiple;
    ops::probe_gemms(*chip.device);
    CHECK(chip.device->traits().fp8_products == expected);
    check_scaled_gemms(*chip.device, pairs);
    // What a layer with such extents does.
    const TensorFormat block = blockwise_format(DType::e4m3, per::block_1x128);
    for (const int64_t m : {132, 136, 144, 256}) {
      ScaledProduct product({block, block}, {m, 256, 256}, DType::f32, false);
      const auto found = ops::gemm_support(chip.device->traits(), product.call());
      const bool native = m % multiple == 0;
      CHECK(found.native == native);
      CHECK(found.dequantized == !native);
      CHECK((found.reason.find("multiples of " + std::to_string(multiple)) !=
             std::string_view::npos) == !native);
      const auto bytes = static_cast<size_t>(2 * 256 * (m + 256));
      CHECK(ops::gemm_scratch_bytes(chip.device->traits(), product.call()) == (native ? 0 : bytes));
    }
  }
}

TEST_CASE("a library that wants multiples of 16 columns gets them for one scale for each tensor",
          "[cuda][scaled_gemm]") {
  const Chip chip(90);
  shim::answer_products([](const shim::AskedProduct& asked) {
    const bool fp8 = asked.a == CUDA_R_8F_E4M3 || asked.a == CUDA_R_8F_E5M2;
    return fp8 && asked.a_scales == 0 && asked.n % 16 != 0 ? CUBLAS_STATUS_NOT_SUPPORTED
                                                           : CUBLAS_STATUS_SUCCESS;
  });
  ops::probe_gemms(*chip.device);
  Fp8Products expected = cuda_traits(90).fp8_products;
  expected.set(ScalePair::tensor, Fp8Support::by_16);
  CHECK(chip.device->traits().fp8_products == expected);
  Side side(*chip.device);
  for (const int64_t n : {32, 24}) {
    CAPTURE(n);
    Array a(DType::e4m3, {32, 64}, random_values(32 * 64, 1));
    Array b(DType::e5m2, {n, 64}, random_values(n * 64, 2));
    const auto run = [&](Side& at) {
      ops::Gemm call = {.a = with_tensor_scale(at.put(a), at.put_value(kScaleOfA)),
                        .b = {with_tensor_scale(at.put(b), at.put_value(kScaleOfB)), true},
                        .c = at.put(Array(DType::f32, {32, n}, random_values(32 * n, 5))),
                        .beta = 1.0F};
      const size_t bytes = ops::gemm_scratch_bytes(at.device().traits(), call);
      CHECK((at.device().kind() == DeviceKind::cpu || (bytes > 0) == (n == 24)));
      call.scratch = at.space(DType::u8, {static_cast<int64_t>(bytes)});
      ops::gemm(at.stream(), call);
      return at.get(call.c);
    };
    // The scales come on top of an exact product of codes.
    CHECK(worst_difference(run(side), on_cpu(run), 0x1p-20, 1e-4) <= 1);
  }
}

TEST_CASE("few rows and a large K with row scales are dequantized in memory of the caller",
          "[cuda][scaled_gemm]") {
  const Chip chip(90);
  ops::probe_gemms(*chip.device);
  shim::faults().few_rows = 256;
  const DeviceTraits& traits = chip.device->traits();
  ScaledProduct product(kRows, {127, 16, 9216}, DType::bf16, false);
  const std::string log = log_of([&] {
    const ops::GemmSupport support = ops::gemm_support(traits, product.call());
    CHECK(support.dequantized);
    CHECK_FALSE(support.native);
    CHECK(support.reason == "cuBLASLt refuses this shape with these types and scales on this GPU");
    CHECK(ops::gemm_scratch_bytes(traits, product.call()) > 0);
    Side side(*chip.device);
    const auto asked = shim::heuristics_asked();
    CHECK(worst(product, product.run(side)) <= 1);
    CHECK(shim::heuristics_asked() == asked + 1);  // for the bf16 product
    ScaledProduct other(kRows, {128, 16, 9216}, DType::bf16, false);
    CHECK_FALSE(ops::gemm_support(traits, other.call()).native);
  });
  CHECK(std::count(log.begin(), log.end(), '\n') == 1);
  CHECK_THAT(log, Catch::Contains("no GEMM of 127 x 16 x 9216") &&
                      Catch::Contains("row scales with few rows and a large K") &&
                      Catch::Contains("dequantized"));
  CHECK(ops::gemm_support(traits, ScaledProduct(kRows, {257, 16, 9216}, DType::bf16, false).call())
            .native);
  CHECK(ops::gemm_support(traits, ScaledProduct(kRows, {127, 16, 9200}, DType::bf16, false).call())
            .native);
}

TEST_CASE("a product that is refused when it runs is dequantized in memory of the device",
          "[cuda][scaled_gemm]") {
  const Chip chip(90);
  ops::probe_gemms(*chip.device);
  const DeviceTraits& traits = chip.device->traits();
  Side side(*chip.device);
  ScaledProduct product(kRows, {132, 48, 160}, DType::bf16, false);
  ops::Gemm call = product.on(side);
  REQUIRE(ops::gemm_support(traits, call).native);
  REQUIRE(call.scratch.empty());
  shim::answer_products([](const shim::AskedProduct& asked) {
    return asked.a_scales == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F
               ? CUBLAS_STATUS_NOT_SUPPORTED
               : CUBLAS_STATUS_SUCCESS;
  });
  const size_t before = chip.device->ledger().total();
  const size_t bytes = ops::dequantized_scratch_bytes(call);
  const std::string log = log_of([&] {
    for (int i = 0; i < 2; ++i) {
      ops::gemm(side.stream(), call);
      CHECK(worst(product, side.get(call.c)) <= 1);
      CHECK(chip.device->ledger().total() == before + bytes);
      CHECK(ops::gemm_support(traits, call).dequantized);
    }
  });
  // The bias, the refusal and the memory.
  CHECK(std::count(log.begin(), log.end(), '\n') == 3);
  CHECK_THAT(log, Catch::Contains("refused by the test") &&
                      Catch::Contains("GPU memory that no plan has"));
}

TEST_CASE("sums of split-K are never added in bf16", "[cuda][gemm]") {
  const Chip chip(90);
  shim::faults().reduces_in_d = true;
  constexpr int64_t kK = 256;
  Array a(DType::bf16, {16, kK}, random_values(16 * kK, 1));
  Array b(DType::bf16, {16, kK}, random_values(16 * kK, 2));
  const auto run = [&](Side& side) {
    const View c = side.space(DType::bf16, {16, 16});
    ops::gemm(side.stream(), {.a = {side.put(a)}, .b = {side.put(b), true}, .c = c});
    return side.get(c);
  };
  shim::take_algorithms();
  Side side(*chip.device);
  CHECK(worst_difference(run(side), on_cpu(run), 0x1p-8, 1e-4) <= 1);
  CHECK(shim::take_algorithms() == std::vector<int>{1});
}

}  // namespace
}  // namespace fp8train::test
