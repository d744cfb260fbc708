// Operands as cuBLASLt takes them where it does not take them as they are: decoded to 16 bits, or
// with zeros behind their K.

#include "base/error.h"
#include "ops/dispatch/cuda_operations.h"
#include "ops/gemm/gemm_plans_cuda.h"
#include "ops/gemm/gemm_support.h"
#include "ops/gemm/pad_codes.h"

namespace fp8train::ops::cuda {
namespace {

constexpr size_t kScratchAlignment = 256;

bool is_aligned(const void* pointer, size_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

/// Factors of a product in the workspace: what it is multiplied by and beta, where the library
/// reads them, and a 1.
struct Factors {
  explicit Factors(Stream stream)
      : data(reinterpret_cast<float*>(static_cast<char*>(cuda_context(stream).workspace) +
                                      kBiasBytes)) {}
  View alpha() const { return {data, DType::f32, {1}}; }
  View beta() const { return {data + 1, DType::f32, {1}}; }
  View one() const { return {data + 2, DType::f32, {1}}; }

  float* data;
};

/// The scratch of the call, or memory of the device where it has none.
View scratch_for(Stream stream, const Gemm& call, size_t bytes) {
  const View scratch = call.scratch.empty()
                           ? gemm_plans(cuda_context(stream)).unplanned_scratch(bytes)
                           : call.scratch;
  check(scratch.bytes() >= bytes && is_aligned(scratch.data, kScratchAlignment),
        "gemm: scratch of gemm_scratch_bytes, 256-byte aligned, expected");
  return scratch;
}

/// The operand without its tensor's scale, in y.
void decode(Stream stream, const GemmOperand& operand, const View& y) {
  if (operand.has_blocks()) {
    return ops::dequantize(stream, without_tensor_scale(operand.tensor), y);
  }
  const View one = Factors(stream).one();
  op_table(stream).fill(stream, one, 1.0F);
  Encoded tensor = operand.tensor.codes;
  tensor.tensor_scale = one.as<float>();
  ops::dequantize(stream, tensor, y);
}

}  // namespace

const float* find_factors(Stream stream, const Gemm& call) {
  const float* const of_a = call.a.tensor.tensor_scale;
  const float* const of_b = call.b.tensor.tensor_scale;
  if (of_a == nullptr && of_b == nullptr) {
    return nullptr;
  }
  const Factors factors(stream);
  const OpTable& table = op_table(stream);
  if (of_a == nullptr) {
    table.fill(stream, factors.alpha(), 1.0F);
  } else {
    table.cast(stream, ConstView{of_a, DType::f32, {1}}, factors.alpha());
  }
  if (of_b != nullptr) {
    table.scale_by(stream, factors.alpha(), of_b);
  }
  table.fill(stream, factors.beta(), call.beta);
  return factors.data;
}

void multiply_dequantized(Stream stream, const Gemm& call) {
  const size_t bytes = dequantized_scratch_bytes(call);
  const View scratch = scratch_for(stream, call, bytes);
  const DType type = call.c.dtype == DType::f16 ? DType::f16 : DType::bf16;
  const Shape& a_shape = call.a.matrix().shape;
  const Shape& b_shape = call.b.matrix().shape;
  const size_t b_bytes = static_cast<size_t>(b_shape.count()) * size_of(type);
  const View a = {scratch.data, type, a_shape};
  const View b = {scratch.as<char>() + (bytes - b_bytes), type, b_shape};
  decode(stream, call.a, a);
  decode(stream, call.b, b);
  multiply(stream,
           {.a = {a, call.a.transposed, per::tensor},
            .b = {b, call.b.transposed, per::tensor},
            .c = call.c,
            .beta = call.beta,
            .fast_accumulate = true,
            .factors = find_factors(stream, call)},
           call.bias);
}

Gemm with_padding(Stream stream, const Gemm& call, const GemmSupport& support) {
  if (support.padded_k == 0) {
    return call;
  }
  const auto [a_shape, b_shape] = padded_shapes(call, support.padded_k);
  const size_t bytes = gemm_scratch_bytes(*cuda_context(stream).traits, call);
  const View scratch = scratch_for(stream, call, bytes);
  const DType b_type = call.b.matrix().dtype;
  const View a = {scratch.data, call.a.matrix().dtype, a_shape};
  const View b = {scratch.as<char>() + (bytes - storage_bytes(b_type, b_shape)), b_type, b_shape};
  Gemm padded = call;
  for (const auto& [operand, codes] : {std::pair{&padded.a, a}, {&padded.b, b}}) {
    pad_codes(stream, operand->matrix(), codes);
    operand->tensor.codes = codes;
  }
  return padded;
}

Gemm after_padding(Gemm call, const GemmSupport& support) {
  if (support.padded_k != 0) {
    call.scratch = {};
  }
  return call;
}

}  // namespace fp8train::ops::cuda
