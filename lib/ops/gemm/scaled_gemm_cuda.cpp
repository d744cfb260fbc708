// Products of operands with a scale for each block: cuBLASLt's block and vector scale modes, or
// bf16 products of dequantized operands where scaled_gemm_support says so.

#include "ops/gemm/scaled_gemm.h"

#include "base/error.h"
#include "ops/dispatch/cuda_operations.h"
#include "ops/gemm/gemm_plans_cuda.h"

namespace fp8train::ops::cuda {
namespace {

constexpr size_t kScratchAlignment = 256;

bool is_aligned(const void* pointer, size_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

void multiply_natively(Stream stream, const ScaledGemm& call, bool fast_accumulate) {
  const auto operand = [](const ScaledGemmOperand& from, bool transposed) {
    check(is_aligned(from.matrix.codes.data, 16) && is_aligned(from.matrix.scale_inv.data, 16),
          "scaled_gemm: on cuda codes and scales start at multiples of 16 bytes");
    return ProductOperand{from.matrix.codes, transposed, from.format.block,
                          from.matrix.scale_inv.data};
  };
  multiply(stream,
           {.a = operand(call.a, false),
            .b = operand(call.b, true),
            .c = call.c,
            .beta = call.beta,
            .fast_accumulate = fast_accumulate},
           call.bias);
}

void multiply_dequantized(Stream stream, const ScaledGemm& call) {
  const size_t bytes = scaled_gemm_scratch_bytes(*cuda_context(stream).traits, call);
  check(!call.scratch.empty() && call.scratch.bytes() >= bytes &&
            is_aligned(call.scratch.data, kScratchAlignment),
        "scaled_gemm: scratch of scaled_gemm_scratch_bytes, 256-byte aligned, expected");
  const DType type = call.c.dtype == DType::f16 ? DType::f16 : DType::bf16;
  const Shape& a_shape = call.a.matrix.codes.shape;
  const Shape& b_shape = call.b.matrix.codes.shape;
  const size_t b_bytes = static_cast<size_t>(b_shape.count()) * size_of(type);
  const View a = {call.scratch.data, type, a_shape};
  const View b = {call.scratch.as<char>() + (bytes - b_bytes), type, b_shape};
  const OpTable& table = op_table(stream);
  table.dequantize_blockwise(stream, call.a.matrix, call.a.format, call.a.layout, a);
  table.dequantize_blockwise(stream, call.b.matrix, call.b.format, call.b.layout, b);
  table.gemm(stream, {.a = {a}, .b = {b, true}, .c = call.c, .beta = call.beta, .bias = call.bias});
}

}  // namespace

void scaled_gemm(Stream stream, const ScaledGemm& call) {
  const ScaledGemmSupport support = scaled_gemm_support(*cuda_context(stream).traits, call);
  if (support.native) {
    multiply_natively(stream, call, support.fast_accumulate);
  } else {
    multiply_dequantized(stream, call);
  }
}

}  // namespace fp8train::ops::cuda
