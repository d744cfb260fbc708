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

TEST_CASE("codes are padded with zeros behind each row and below", "[cuda][scaled_gemm][small]") {
  const Chip chip(90);
  Side side(*chip.device);
  for (const DType type : {DType::e4m3, DType::i8, DType::e2m1}) {
    for (const int64_t columns : {33, 40, 1}) {
      const Shape to = {6, 48};
      INFO(name_of(type) << " " << columns);
      const Array from(type, {5, columns}, std::vector<float>(static_cast<size_t>(5 * columns), 1));
      // The unused half of a byte of two codes, and memory of earlier work.
      const View codes = side.put(from);
      std::vector<uint8_t> bytes(codes.bytes());
      chip.device->copy_to_host(bytes.data(), codes.data, bytes.size());
      if (type == DType::e2m1 && columns % 2 == 1) {
        const size_t width = bytes.size() / 5;
        for (size_t row = 0; row < 5; ++row) {
          bytes[row * width + width - 1] |= 0xF0;
        }
        chip.device->copy_from_host(codes.data, bytes.data(), bytes.size());
      }
      const View padded =
          side.put(Array(type, to, std::vector<float>(static_cast<size_t>(to.count()), 2)));
      ops::cuda::pad_codes(side.stream(), codes, padded);
      const Array got = side.get(padded);
      for (int64_t i = 0; i < to.count(); ++i) {
        const bool inside = i / 48 < 5 && i % 48 < columns;
        CHECK(got.get(i) == (inside ? 1.0F : 0.0F));
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

TEST_CASE("a padded product with one scale for each tensor, stored along K or across it",
          "[cuda][scaled_gemm]") {
  // Chips from sm_100 on multiply codes as they lie, so that K may be their rows.
  for (const auto& [capability, transposed] : {std::pair{90, false}, {100, true}}) {
    const Chip chip(capability);
    const auto run = [&, across = transposed](Side& at) {
      const auto stored = [&](int64_t rows, uint32_t seed) {
        return Array(DType::e4m3, across ? Shape{40, rows} : Shape{rows, 40},
                     random_values(rows * 40, seed));
      };
      ops::Gemm call = {
          .a = {{}, across, with_tensor_scale(at.put(stored(32, 1)), at.put_value(2.0F))},
          .b = {{}, !across, with_tensor_scale(at.put(stored(48, 2)), at.put_value(0.5F))},
          .c = at.put(Array(DType::f32, {32, 48}, random_values(32 * 48, 5))),
          .beta = 1.0F};
      const size_t bytes = ops::gemm_scratch_bytes(at.device().traits(), call);
      CHECK(bytes == (at.device().kind() == DeviceKind::cuda ? 48 * 32 + 48 * 48 : 0));
      call.scratch = at.space(DType::u8, {static_cast<int64_t>(bytes)});
      ops::gemm(at.stream(), call);
      return at.get(call.c);
    };
    Side side(*chip.device);
    CHECK(worst_difference(run(side), on_cpu(run), 0x1p-20, 1e-4) <= 1);
  }
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
