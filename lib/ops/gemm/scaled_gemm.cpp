#include "ops/gemm/scaled_gemm.h"

#include <algorithm>

#include "base/math.h"
#include "base/trace.h"
#include "ops/cast/scale_blocks.h"
#include "ops/dispatch/op_table.h"
#include "ops/support/checks.h"

namespace fp8train::ops {
namespace {

constexpr int64_t kVector = 16;      // bytes: rows of codes and of the result start at multiples
constexpr int64_t kMxBlock = 32;     // K of a 1x32 block
constexpr int64_t kScaleVector = 4;  // scales of a 1x128 or 128x128 operand are read four at once
constexpr size_t kAlignment = 256;   // of the second dequantized operand

bool is_block(ScaleBlock block) {
  return block == per::block_1x128 || block == per::block_128x128;
}

void check_operand(const ScaledGemmOperand& operand) {
  check_blockwise_format(operand.format);
  const Shape& shape = operand.matrix.codes.shape;
  check(shape.rank() == 2 && shape.count() > 0 && !operand.matrix.codes.empty(),
        "scaled_gemm: matrices of codes expected");
  check_blockwise(operand.matrix, operand.format, operand.layout, shape);
}

void check_call(const ScaledGemm& call) {
  check_operand(call.a);
  check_operand(call.b);
  const ScaleBlock a = call.a.format.block;
  const ScaleBlock b = call.b.format.block;
  check(a == b || (is_block(a) && is_block(b)),
        "scaled_gemm: granularities of the operands do not go together");
  check(a != per::block_128x128 || b != per::block_128x128,
        "scaled_gemm: no product of two operands with 128x128 scales");
  const bool a_is_i8 = call.a.format.dtype == DType::i8;
  check(a_is_i8 == (call.b.format.dtype == DType::i8) && (!a_is_i8 || a == per::row),
        "scaled_gemm: int8 codes need row scales and another operand of int8");
  check(is_float_type(call.c.dtype), "scaled_gemm: c must be fp32, bf16 or fp16");
  check(call.c.shape.rank() == 2 && !call.c.empty() &&
            call.c.shape[0] == call.a.matrix.codes.shape[0] &&
            call.c.shape[1] == call.b.matrix.codes.shape[0] &&
            call.a.matrix.codes.shape[1] == call.b.matrix.codes.shape[1],
        "scaled_gemm: shapes do not fit");
  check(call.beta == 0.0F || (call.beta == 1.0F && call.c.dtype == DType::f32),
        "scaled_gemm: beta must be 0, or 1 with an fp32 c");
  check(call.bias.empty() || holds(call.bias, DType::f32, call.c.shape[1]),
        "scaled_gemm: bias must be fp32 [N]");
}

ScalePair scale_pair(const ScaledGemm& call) {
  const ScaleBlock a = call.a.format.block;
  const ScaleBlock b = call.b.format.block;
  if (a == per::row || a == per::block_1x32) {
    return a == per::row ? ScalePair::row : ScalePair::block_1x32;
  }
  return a == per::block_128x128   ? ScalePair::block_128x128_1x128
         : b == per::block_128x128 ? ScalePair::block_1x128_128x128
                                   : ScalePair::block_1x128_1x128;
}

bool aligned(int64_t m, int64_t n, int64_t k) {
  return m % kAlignedExtent == 0 && n % kAlignedExtent == 0 && k % kAlignedExtent == 0;
}

std::string_view why_no_product(ScalePair pair) {
  switch (pair) {
    case ScalePair::tensor:
      return "this GPU has no FP8 products with one scale for each tensor";
    case ScalePair::row:
      return "this GPU has no products with row scales";
    case ScalePair::block_1x32:
      return "this GPU has no products with 1x32 scales";
    default:
      return "this GPU has no products with 1x128 and 128x128 scales";
  }
}

/// What the table says of a product of these extents. Where only the short accumulator is missing,
/// the product runs without it.
ScaledGemmSupport table_support(const DeviceTraits& traits, const Fp8Product& product, int64_t m,
                                int64_t n, int64_t k) {
  const bool fast = product.fast_accumulate && has_fast_accumulation(product.scales);
  const auto suits = [&](bool fast_accumulate) {
    Fp8Product asked = product;
    asked.fast_accumulate = fast_accumulate;
    const Fp8Support support = traits.fp8_products.support(asked);
    return support == Fp8Support::any || (support == Fp8Support::aligned && aligned(m, n, k));
  };
  if (suits(fast)) {
    return {true, {}, fast};
  }
  if (fast && suits(false)) {
    return {true, {}, false};
  }
  Fp8Product accurate = product;
  accurate.fast_accumulate = false;
  const bool for_others = traits.fp8_products.support(product) == Fp8Support::aligned ||
                          traits.fp8_products.support(accurate) == Fp8Support::aligned;
  const std::string_view reason =
      !traits.fp8_products.has(product.scales) ? why_no_product(product.scales)
      : for_others ? "cuBLASLt multiplies these types and scales on this GPU only where M, N and K "
                     "are multiples of 128"
                   : "cuBLASLt does not multiply these types with these scales on this GPU";
  return {false, reason, false};
}

/// The rule of the tensor cores or of cuBLASLt that `call` breaks; empty where it keeps all.
std::string_view broken_rule(const ScaledGemm& call) {
  const ScaleBlock block = call.a.format.block;
  const int64_t m = call.c.shape[0];
  const int64_t n = call.c.shape[1];
  const int64_t k = call.a.matrix.codes.shape[1];
  if (call.a.format.dtype == DType::e5m2 && call.b.format.dtype == DType::e5m2) {
    return "tensor cores do not multiply e5m2 by e5m2";
  }
  if (k % kVector != 0) {
    return "K is not a multiple of 16";
  }
  if (block == per::block_1x32 && k % kMxBlock != 0) {
    return "K is not a multiple of 32";
  }
  if (n * static_cast<int64_t>(size_of(call.c.dtype)) % kVector != 0) {
    return "a row of the result is not a multiple of 16 bytes";
  }
  if (is_block(block) && (m % kScaleVector != 0 || n % kScaleVector != 0)) {
    return "M and N are not multiples of 4";
  }
  const auto fits = [](const ScaledGemmOperand& operand) {
    return operand.format.block == per::row || operand.layout == ScaleLayout::cublaslt;
  };
  return fits(call.a) && fits(call.b) ? "" : "the scales are not laid out for cuBLASLt";
}

/// Of an operand once it is dequantized to a type of 16 bits.
size_t dequantized_bytes(const ScaledGemmOperand& operand) {
  return static_cast<size_t>(operand.matrix.codes.shape.count()) * size_of(DType::bf16);
}

}  // namespace

ScaledGemmSupport scaled_gemm_support(const DeviceTraits& traits, const ScaledGemm& call) {
  if (!traits.scaled_gemm_by_library) {
    return {true, {}, call.fast_accumulate};
  }
  if (call.a.format.dtype == DType::i8) {
    return {false, "int8 codes are multiplied as the values that they stand for", false};
  }
  if (const ScalePair pair = scale_pair(call); !traits.fp8_products.has(pair)) {
    return {false, why_no_product(pair), false};
  }
  if (const std::string_view broken = broken_rule(call); !broken.empty()) {
    return {false, broken, false};
  }
  return table_support(traits,
                       {.scales = scale_pair(call),
                        .a = call.a.format.dtype,
                        .b = call.b.format.dtype,
                        .c = call.c.dtype,
                        .fast_accumulate = call.fast_accumulate},
                       call.c.shape[0], call.c.shape[1], call.a.matrix.codes.shape[1]);
}

ScaledGemmSupport tensor_gemm_support(const DeviceTraits& traits, const Fp8Product& product,
                                      int64_t m, int64_t n, int64_t k) {
  return traits.scaled_gemm_by_library ? table_support(traits, product, m, n, k)
                                       : ScaledGemmSupport{true, {}, product.fast_accumulate};
}

size_t scaled_gemm_scratch_bytes(const DeviceTraits& traits, const ScaledGemm& call) {
  if (scaled_gemm_support(traits, call).native) {
    return 0;
  }
  const size_t first = round_up(dequantized_bytes(call.a), kAlignment);
  return first + dequantized_bytes(call.b);
}

void scaled_gemm(Stream stream, const ScaledGemm& call) {
  check_call(call);
  const TraceSpan span("scaled_gemm");
  dispatch<&OpTable::scaled_gemm>(stream, call);
}

void probe_scaled_gemm(Device& device) {
  dispatch<&OpTable::probe_scaled_gemm>(device);
}

}  // namespace fp8train::ops
