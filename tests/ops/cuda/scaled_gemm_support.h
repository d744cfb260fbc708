#pragma once
// One scaled product that is run on several devices.

#include <cstring>
#include <string>
#include <vector>

#include "ops/cuda/cuda_test_support.h"
#include "ops/fp8_gemm_cases.h"
#include "ops/gemm/gemm.h"
#include "ops/scaled_gemm_cases.h"

namespace fp8train::test {

struct ProductShape {
  int64_t m, n, k;
};

struct ScaledProduct {
  /// Scales as cuBLASLt reads them. `add`: to what c holds, for an fp32 c.
  ScaledProduct(const FormatPair& formats, const ProductShape& wanted, DType c_type, bool add)
      : shape(wanted),
        a(formats.a, ScaleLayout::cublaslt, wanted.m, wanted.k,
          uneven_values(wanted.m, wanted.k, 1)),
        b(formats.b, ScaleLayout::cublaslt, wanted.n, wanted.k,
          uneven_values(wanted.n, wanted.k, 2)),
        c(c_type, {wanted.m, wanted.n}, random_values(wanted.m * wanted.n, 3)),
        bias(DType::f32, {wanted.n}, random_values(wanted.n, 4)),
        beta(add && c_type == DType::f32 ? 1.0F : 0.0F) {}

  /// On the host.
  ops::Gemm call() {
    return {.a = a.operand(),
            .b = b.operand(true),
            .c = c,
            .beta = beta,
            .bias = bias,
            .fast_accumulate = false};
  }

  /// With all its memory on the device, scratch included.
  ops::Gemm on(Side& side) {
    ops::Gemm result = call();
    for (const auto& [operand, matrix] : {std::pair{&result.a, &a}, {&result.b, &b}}) {
      operand->tensor = {side.put(matrix->codes), matrix->format, side.put(matrix->scale_inv),
                         matrix->layout};
    }
    result.c = side.put(c);
    result.bias = side.put(bias);
    const size_t bytes = ops::gemm_scratch_bytes(side.device().traits(), result);
    result.scratch = side.space(DType::u8, {static_cast<int64_t>(bytes)});
    return result;
  }

  Array run(Side& side) {
    const ops::Gemm call = on(side);
    ops::gemm(side.stream(), call);
    return side.get(call.c);
  }

  /// What a device without the scale mode computes: operands rounded to 16 bits, a plain product.
  Array run_dequantized(Side& side) {
    const ops::Gemm call = on(side);
    const DType type = c.dtype() == DType::f16 ? DType::f16 : DType::bf16;
    const auto dequantized = [&](const ops::GemmOperand& operand) {
      const View values = side.space(type, operand.matrix().shape);
      ops::dequantize(side.stream(), operand.tensor, values);
      return values;
    };
    ops::gemm(side.stream(), {.a = {dequantized(call.a)},
                              .b = {dequantized(call.b), true},
                              .c = call.c,
                              .beta = beta,
                              .bias = call.bias});
    return side.get(call.c);
  }

  /// Makes the scale of a block of `a` NaN.
  void spoil_scale(int64_t row, int64_t block) {
    const int64_t at = a.grid.offset(row, std::min(block, a.grid.columns - 1));
    if (dtype_of(a.format.scale_type) == DType::e8m0) {
      a.scale_inv.as<uint8_t>()[at] = 0xFF;
    } else {
      a.scale_inv.set(at, std::nanf(""));
    }
  }

  double rounding() const { return gemm_rounding(c.dtype()); }
  /// cuBLASLt takes the bias, of order 1, rounded to the type of c.
  double tolerance() const {
    return fp8_sum_tolerance(shape.k) + (c.dtype() == DType::f32 ? 0.0 : 4 * rounding());
  }
  std::string name() const {
    return describe(a.format) + " x " + describe(b.format) + " to " +
           std::string(name_of(c.dtype())) + ", " + std::to_string(shape.m) + " x " +
           std::to_string(shape.n) + " x " + std::to_string(shape.k);
  }

  ProductShape shape;
  ScaledMatrix a, b;
  Array c, bias;
  float beta;
};

/// Checks a product of each pair of formats on a device, in shapes that leave pieces of blocks and
/// of cuBLASLt's paddings over: native where gemm_support() says so, else from dequantized
/// operands. M is a multiple of 4, 8 and 128, or odd with a K of no whole blocks; the last shape is
/// one that no tensor core takes.
inline void check_scaled_gemms(Device& device,
                               const std::vector<FormatPair>& pairs = format_pairs()) {
  constexpr ProductShape kShapes[] = {
      {260, 144, 288}, {264, 152, 288}, {128, 256, 256}, {33, 32, 80}, {20, 12, 30}};
  size_t index = 0;
  for (const FormatPair& formats : pairs) {
    for (const ProductShape& shape : kShapes) {
      const DType c_type = kFloatTypes[index++ % 3].dtype;
      ScaledProduct product(formats, shape, c_type, index % 2 == 0);
      INFO(product.name());
      const bool native = ops::gemm_support(device.traits(), product.call()).native;
      const Array expected = on_cpu(
          [&](Side& cpu) { return native ? product.run(cpu) : product.run_dequantized(cpu); });
      Side side(device);
      CHECK(worst_difference(product.run(side), expected, product.rounding(),
                             product.tolerance()) <= 1);
    }
  }
}

}  // namespace fp8train::test
