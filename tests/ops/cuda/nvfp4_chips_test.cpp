// Products of NVFP4 on chips that have them and on those that have not: the shim claims their
// compute capability. Only in the SHIM form.

#include <catch2/catch.hpp>

#include "cublaslt_fake.h"
#include "cuda_runtime_api.h"
#include "ops/cuda/nvfp4_cases.h"
#include "ops/cuda/shim_chip.h"

namespace fp8train::test {
namespace {

struct Product {
  int64_t m = 48, n = 64, k = 96;
  TensorFormat of_x = nvfp4_format(per::block_1x16), of_w = nvfp4_format(per::block_16x16);
  DType c_type = DType::f32;
  bool add = false;

  Array run(Side& side, ScaleLayout layout) const {
    const Array x(DType::bf16, {m, k}, random_values(m * k, 1));
    const Array w(DType::bf16, {n, k}, random_values(n * k, 2));
    const Nvfp4Cast a(side, x, m, k, of_x, layout, false);
    const Nvfp4Cast b(side, w, n, k, of_w, layout, false);
    ops::Gemm call = {.a = a.operand(false),
                      .b = b.operand(true),
                      .c = side.put(Array(c_type, {m, n}, random_values(m * n, 3))),
                      .beta = add ? 1.0F : 0.0F,
                      .bias = side.put(Array(DType::f32, {n}, random_values(n, 4)))};
    const size_t bytes = ops::gemm_scratch_bytes(side.device().traits(), call);
    call.scratch = side.space(DType::u8, {static_cast<int64_t>(bytes)});
    ops::gemm(side.stream(), call);
    ops::gemm(side.stream(), call);  // a plan that is there already; with `add` on top
    return side.get(call.c);
  }
};

TEST_CASE("NVFP4 is multiplied on sm_100, and as bf16 on other chips", "[cuda][scaled_gemm]") {
  for (const int capability : {89, 90, 100}) {
    const Chip chip(capability);
    for (const int64_t k : {96, 48}) {
      for (const DType c_type : {DType::f32, DType::bf16}) {
        const Product product = {.k = k, .c_type = c_type, .add = c_type == DType::f32};
        INFO(k << " to " << name_of(c_type) << " on " << capability);
        const TensorFormat x = nvfp4_format(per::block_1x16);
        const ops::GemmSupport support =
            ops::gemm_support(chip.device->traits(), {x, nvfp4_format(per::block_16x16), c_type},
                              {product.m, product.n, k});
        CHECK(support.native == (capability == 100));  // with zeros behind a K of 48
        CHECK(support.dequantized != support.native);
        Side side(*chip.device);
        const Array expected =
            on_cpu([&](Side& cpu) { return product.run(cpu, ScaleLayout::row_major); });
        // The order of fp32 sums; in bf16 a bias is rounded first.
        const double rounding = c_type == DType::f32 ? 0x1p-20 : 0x1p-7;
        const double tolerance =
            1e-5 * static_cast<double>(k) + (c_type == DType::f32 ? 0 : 0x1p-5);
        CHECK(worst_difference(product.run(side, ScaleLayout::cublaslt), expected, rounding,
                               tolerance) <= 1);
      }
    }
  }
}

TEST_CASE("MXFP4 and scales of rows are multiplied as bf16 on every chip", "[cuda][scaled_gemm]") {
  for (const int capability : {90, 100}) {
    const Chip chip(capability);
    for (const bool by_row : {false, true}) {
      Product product;
      if (by_row) {
        product.of_x.row_scaled = true;
      } else {
        product.of_x.block = product.of_w.block = per::block_1x32;
        product.of_x.scale_type = product.of_w.scale_type = ScaleType::e8m0_floor;
      }
      INFO(describe(product.of_x) << " on " << capability);
      const ops::GemmSupport support = ops::gemm_support(
          chip.device->traits(), {product.of_x, product.of_w}, {product.m, product.n, product.k});
      CHECK((support.dequantized && !support.native));
      Side side(*chip.device);
      const Array expected =
          on_cpu([&](Side& cpu) { return product.run(cpu, ScaleLayout::row_major); });
      // Codes times scales of rows are rounded to bf16.
      const double rounding = by_row ? 0x1p-8 : 0x1p-20;
      CHECK(worst_difference(product.run(side, ScaleLayout::cublaslt), expected, rounding,
                             by_row ? 0.1 : 1e-3) <= 1);
    }
  }
}

TEST_CASE("a library that leaves out the scales of NVFP4 is found out", "[cuda][scaled_gemm]") {
  const Chip chip(100);
  shim::ignore_scales(true);
  ops::probe_gemms(*chip.device);
  CHECK_FALSE(chip.device->traits().fp8_products.has(ScalePair::block_1x16));
  shim::ignore_scales(false);
}

TEST_CASE("the probe keeps the products of NVFP4 that are right", "[cuda][scaled_gemm]") {
  const Chip chip(100);
  ops::probe_gemms(*chip.device);
  CHECK(chip.device->traits().fp8_products.support({.scales = ScalePair::block_1x16,
                                                    .a = DType::e2m1,
                                                    .b = DType::e2m1,
                                                    .c = DType::bf16}) == Fp8Support::any);
}

}  // namespace
}  // namespace fp8train::test
