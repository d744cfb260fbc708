// Products of operands with a scale for each block: cuBLASLt's block and vector scale modes, or
// bf16 products of dequantized operands where gemm_support says so.

#include "base/error.h"
#include "ops/dispatch/cuda_operations.h"
#include "ops/gemm/gemm_plans_cuda.h"
#include "ops/gemm/gemm_support.h"

namespace fp8train::ops::cuda {
namespace {

constexpr size_t kScratchAlignment = 256;

bool is_aligned(const void* pointer, size_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

/// The scales of both tensors, multiplied, and beta, where the library reads them; null where there
/// are none.
const float* find_factors(Stream stream, const Gemm& call) {
  float* const of_a = call.a.quantized.tensor_scale_inv;
  if (of_a == nullptr) {
    return nullptr;
  }
  auto* const factors =
      reinterpret_cast<float*>(static_cast<char*>(cuda_context(stream).workspace) + kBiasBytes);
  const View alpha = {factors, DType::f32, {1}};
  const OpTable& table = op_table(stream);
  table.cast(stream, View{of_a, DType::f32, {1}}, alpha);
  table.scale_by(stream, alpha, call.b.quantized.tensor_scale_inv);
  table.fill(stream, {factors + 1, DType::f32, {1}}, call.beta);
  return factors;
}

void multiply_natively(Stream stream, const Gemm& call, bool fast_accumulate) {
  const auto operand = [](const GemmOperand& from) {
    const Quantized& part = from.quantized.rowwise;
    check(is_aligned(part.codes.data, 16) && is_aligned(part.scale_inv.data, 16),
          "gemm: on cuda codes and scales of blocks start at multiples of 16 bytes");
    return ProductOperand{part.codes, from.transposed, from.quantized.format.block.as_stored(),
                          part.scale_inv.data};
  };
  multiply(stream,
           {.a = operand(call.a),
            .b = operand(call.b),
            .c = call.c,
            .beta = call.beta,
            .fast_accumulate = fast_accumulate,
            .factors = find_factors(stream, call)},
           call.bias);
}

void multiply_dequantized(Stream stream, const Gemm& call) {
  const size_t bytes = gemm_scratch_bytes(*cuda_context(stream).traits, call);
  check(!call.scratch.empty() && call.scratch.bytes() >= bytes &&
            is_aligned(call.scratch.data, kScratchAlignment),
        "gemm: scratch of gemm_scratch_bytes, 256-byte aligned, expected");
  const DType type = call.c.dtype == DType::f16 ? DType::f16 : DType::bf16;
  const Shape& a_shape = call.a.quantized.rowwise.codes.shape;
  const Shape& b_shape = call.b.quantized.rowwise.codes.shape;
  const size_t b_bytes = static_cast<size_t>(b_shape.count()) * size_of(type);
  const View a = {call.scratch.data, type, a_shape};
  const View b = {call.scratch.as<char>() + (bytes - b_bytes), type, b_shape};
  ops::dequantize(stream, without_tensor_scale(call.a.quantized), a);
  ops::dequantize(stream, without_tensor_scale(call.b.quantized), b);
  // Without the scales of the tensors, which come on top of the sum as in the native product.
  multiply(stream,
           {.a = {a, false, per::tensor},
            .b = {b, true, per::tensor},
            .c = call.c,
            .beta = call.beta,
            .fast_accumulate = true,
            .factors = find_factors(stream, call)},
           call.bias);
}

}  // namespace

void multiply_blocks(Stream stream, const Gemm& call) {
  const GemmSupport support = gemm_support(*cuda_context(stream).traits, call);
  if (support.native) {
    multiply_natively(stream, call, support.fast_accumulate);
  } else {
    multiply_dequantized(stream, call);
  }
}

}  // namespace fp8train::ops::cuda
