// Products whose K is no multiple of what tensor cores take. Only in the SHIM form.

#include <catch2/catch.hpp>

#include <algorithm>

#include "base/math.h"
#include "ops/cuda/nvfp4_cases.h"
#include "ops/cuda/scaled_gemm_support.h"
#include "ops/cuda/shim_chip.h"
#include "ops/gemm/pad_codes.h"

namespace fp8train::test {
namespace {

TEST_CASE("codes are padded with zeros behind each row", "[cuda][scaled_gemm][small]") {
  const Chip chip(90);
  Side side(*chip.device);
  for (const DType type : {DType::e4m3, DType::i8, DType::e2m1}) {
    for (const int64_t columns : {33, 40, 1}) {
      INFO(name_of(type) << " " << columns);
      constexpr size_t kRowCount = 5;
      const View codes = side.space(type, {kRowCount, columns});
      const View padded = side.space(type, {kRowCount, 48});
      // All bits are set, also those of a last byte that no code has, and in the destination.
      const std::vector<uint8_t> ones(padded.bytes(), 0xFF);
      chip.device->copy_from_host(codes.data, ones.data(), codes.bytes());
      chip.device->copy_from_host(padded.data, ones.data(), padded.bytes());
      ops::cuda::pad_codes(side.stream(), codes, padded);
      std::vector<uint8_t> got(padded.bytes());
      chip.device->copy_to_host(got.data(), padded.data, got.size());
      const int bits = facts_of(type).bits;
      for (size_t i = 0; i < got.size(); ++i) {
        const auto column = static_cast<int64_t>(i % (got.size() / kRowCount)) * 8 / bits;
        const int64_t of_byte = std::clamp<int64_t>(columns - column, 0, 8 / bits);
        CHECK(got[i] == (1 << (of_byte * bits)) - 1);
      }
    }
  }
}

TEST_CASE("products of any K run as codes, with zeros up to the next multiple",
          "[cuda][scaled_gemm]") {
  for (const int capability : {90, 100}) {
    const Chip chip(capability);
    const DeviceTraits& traits = chip.device->traits();
    int padded = 0;
    for (const FormatPair& formats : format_pairs()) {
      for (const int64_t k : {40, 33, 150}) {
        ScaledProduct product(formats, {144, 128, k}, DType::f32, true);
        INFO(product.name() << " on " << capability);
        const ops::GemmSupport support = ops::gemm_support(traits, product.call());
        const int64_t multiple = support.k_multiple;
        CHECK(support.padded_k == (support.native ? round_up(k, multiple) : 0));
        // What K costs nothing has no copy.
        ScaledProduct even(formats, {144, 128, 4 * multiple}, DType::f32, true);
        CHECK(ops::gemm_support(traits, even.call()).padded_k == 0);
        CHECK(ops::gemm_support(traits, even.call()).native == support.native);
        Side side(*chip.device);
        const Array expected = on_cpu([&](Side& cpu) {
          return support.native ? product.run(cpu) : product.run_dequantized(cpu);
        });
        CHECK(worst_difference(product.run(side), expected, product.rounding(),
                               product.tolerance()) <= 1);
        padded += support.native ? 1 : 0;
      }
    }
    CHECK(padded > 0);
  }
}

TEST_CASE("a product with one scale for each tensor is padded too", "[cuda][scaled_gemm]") {
  const Chip chip(90);
  const auto run = [](Side& at) {
    const auto codes = [&](int64_t rows, uint32_t seed) {
      return at.put(Array(DType::e4m3, {rows, 40}, random_values(rows * 40, seed)));
    };
    ops::Gemm call = {.a = with_tensor_scale(codes(32, 1), at.put_value(2.0F)),
                      .b = {with_tensor_scale(codes(48, 2), at.put_value(0.5F)), true},
                      .c = at.put(Array(DType::f32, {32, 48}, random_values(32 * 48, 5))),
                      .beta = 1.0F};
    const size_t bytes = ops::gemm_scratch_bytes(at.device().traits(), call);
    CHECK((at.device().kind() == DeviceKind::cpu || bytes == 48 * 32 + 48 * 48));
    call.scratch = at.space(DType::u8, {static_cast<int64_t>(bytes)});
    ops::gemm(at.stream(), call);
    return at.get(call.c);
  };
  Side side(*chip.device);
  CHECK(worst_difference(run(side), on_cpu(run), 0x1p-20, 1e-4) <= 1);
}

TEST_CASE("a padded product that is refused when it runs is dequantized", "[cuda][scaled_gemm]") {
  const Chip chip(90);
  const FormatPair rows = {blockwise_format(DType::e4m3, per::row),
                           blockwise_format(DType::e4m3, per::row)};
  ScaledProduct product(rows, {132, 48, 40}, DType::bf16, false);
  ops::probe_gemms(*chip.device);
  Side side(*chip.device);
  const ops::Gemm call = product.on(side);
  REQUIRE(ops::gemm_support(chip.device->traits(), call).padded_k == 48);
  shim::answer_products([](const shim::AskedProduct& asked) {
    return asked.a_scales == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F
               ? CUBLAS_STATUS_NOT_SUPPORTED
               : CUBLAS_STATUS_SUCCESS;
  });
  ops::gemm(side.stream(), call);
  const Array expected = on_cpu([&](Side& cpu) { return product.run_dequantized(cpu); });
  CHECK(worst_difference(side.get(call.c), expected, product.rounding(), product.tolerance()) <= 1);
}

}  // namespace
}  // namespace fp8train::test
