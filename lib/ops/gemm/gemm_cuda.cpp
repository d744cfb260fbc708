#include <fmt/format.h>

#include "base/error.h"
#include "device/device.h"
#include "ops/dispatch/cuda_operations.h"
#include "ops/gemm/gemm_plans_cuda.h"
#include "ops/gemm/gemm_support.h"

namespace fp8train::ops::cuda {
namespace {

constexpr uintptr_t kAlignment = 16;

/// The operand with the scales that the library reads: of blocks, or of the tensor.
ProductOperand operand_of(const GemmOperand& from) {
  const Encoded& part = from.tensor;
  if (!from.has_blocks()) {
    return {part.codes, from.transposed, per::tensor, part.tensor_scale};
  }
  check(reinterpret_cast<uintptr_t>(part.codes.data) % kAlignment == 0 &&
            reinterpret_cast<uintptr_t>(part.scales.data) % kAlignment == 0,
        "gemm: on cuda codes and scales of blocks start at multiples of 16 bytes");
  return {part.codes, from.transposed, part.format.block.as_stored(), part.scales.data};
}

/// Throws DeviceError where the library has no such product and none of its values either.
void check_product(const GemmSupport& support, const Gemm& call) {
  if (!support.native && !support.dequantized) {
    throw DeviceError(fmt::format("{} x {} to {}, {} x {} x {}: {}", name_of(call.a.matrix().dtype),
                                  name_of(call.b.matrix().dtype), name_of(call.c.dtype),
                                  call.c.shape[0], call.c.shape[1], call.depth(), support.reason));
  }
}

/// The bias as cuBLASLt adds it: of the type of c, and never to an fp32 sum of FP8 products. Empty
/// where it does not.
ConstView bias_for_library(Stream stream, const Product& product, const ConstView& bias) {
  const DType type = product.c.dtype;
  if (type == DType::f32) {
    const bool aligned = reinterpret_cast<uintptr_t>(bias.data) % kAlignment == 0;
    return aligned && !is_code_type(product.a.matrix.dtype) ? bias : ConstView{};
  }
  const View rounded = {cuda_context(stream).workspace, type, bias.shape};
  if (rounded.bytes() > kBiasBytes) {
    return {};
  }
  op_table(stream).cast(stream, bias, rounded);
  return rounded;
}

}  // namespace

void gemm(Stream stream, const Gemm& call) {
  const bool has_blocks = call.a.has_blocks();
  const bool are_codes = is_fp8(call.a.matrix().dtype) && is_fp8(call.b.matrix().dtype);
  GemmSupport support = {.native = true, .fast_accumulate = call.fast_accumulate};
  if (has_blocks || are_codes) {
    support = gemm_support(*cuda_context(stream).traits, call);
    check_product(support, call);
  }
  check(has_blocks || is_fp8(call.a.matrix().dtype) ||
            (call.a.tensor.tensor_scale == nullptr && call.b.tensor.tensor_scale == nullptr),
        "gemm: on cuda only FP8 operands have scales");
  if (!support.native) {
    return multiply_dequantized(stream, call);
  }
  const Gemm padded = with_padding(stream, call, support);
  if (!multiply(stream,
                {.a = operand_of(padded.a),
                 .b = operand_of(padded.b),
                 .c = call.c,
                 .beta = call.beta,
                 .fast_accumulate = support.fast_accumulate,
                 .factors = has_blocks ? find_factors(stream, call) : nullptr},
                call.bias)) {
    multiply_dequantized(stream, after_padding(call, support));
  }
}

bool multiply(Stream stream, Product product, const ConstView& bias) {
  GemmPlans& plans = gemm_plans(cuda_context(stream));
  if (!bias.empty()) {
    product.bias = bias_for_library(stream, product, bias);
    if (!product.bias.empty() && plans.run_biased(product)) {
      return true;
    }
    product.bias = {};
  }
  if (!is_code_type(product.a.matrix.dtype)) {
    plans.run(product);
  } else if (!plans.run_codes(product)) {
    return false;
  }
  if (!bias.empty()) {
    op_table(stream).add_bias(stream, product.c, bias);
  }
  return true;
}

void pack_operand(Stream /*stream*/, const GemmOperand& /*b*/, View /*packed*/, View /*scratch*/) {
  throw InternalError("cuBLASLt reads operands as they are stored");
}

void tune_gemms(Device& device, const std::string& folder) {
  gemm_plans(cuda_context(device.stream())).tune(folder);
}

}  // namespace fp8train::ops::cuda
