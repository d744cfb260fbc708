#include "nn/linear_product.h"

#include <algorithm>

#include "ops/cast/quantize.h"
#include "ops/pointwise/elementwise.h"
#include "tensor/tensor.h"

namespace fp8train {
namespace {

/// The scale of the tensor for each of its rows.
View row_scales(const StepContext& context, const QuantizedTensor& tensor) {
  const View scales = allocate(*context.scratch, DType::f32, {tensor.rowwise.codes.shape.rows()});
  ops::fill(context.stream, scales, 1.0F);
  ops::scale_by(context.stream, scales, tensor.tensor_scale_inv);
  return scales;
}

/// The operand as the library reads it next to `other`: codes next to a plain operand as their
/// values, one scale of a tensor next to those of rows as scales of rows.
ops::GemmOperand read_next_to(const StepContext& context, ops::GemmOperand operand,
                              const ops::GemmOperand& other) {
  QuantizedTensor& quantized = operand.quantized;
  if (quantized.empty()) {
    return operand;
  }
  if (other.quantized.empty()) {
    const View values =
        allocate(*context.scratch, other.plain.dtype, quantized.rowwise.codes.shape);
    ops::dequantize(context.stream, quantized, values);
    return {values, operand.transposed};
  }
  const TensorFormat format = ops::read_as(quantized.format, other.quantized.format);
  if (format.block != quantized.format.block) {
    quantized.rowwise.scale_inv = row_scales(context, quantized);
    quantized.tensor_scale_inv = nullptr;
    quantized.format = format;
  }
  return operand;
}

}  // namespace

void multiply(const StepContext& context, const LinearProduct& product) {
  ArenaScope scope(*context.scratch);
  ops::Gemm call = {.a = read_next_to(context, product.a, product.b),
                    .b = read_next_to(context, product.b, product.a),
                    .c = product.c,
                    .beta = product.beta,
                    .bias = product.bias,
                    .fast_accumulate = product.plan.fast_accumulate,
                    .emulate_accumulator = product.plan.emulate_accumulator};
  call.b.transposed = !call.b.transposed;
  const size_t bytes = ops::gemm_scratch_bytes(context.device->traits(), call);
  if (context.scratch->has(bytes)) {
    call.scratch = allocate(*context.scratch, DType::u8, {static_cast<int64_t>(bytes)});
  }
  ops::gemm(context.stream, call);
}

DType gradient_result(const LinearPlan& plan, const TensorFormat& gradient) {
  const bool is_bf16 = plan.activation == DType::bf16 && gradient == plain(DType::bf16);
  return is_bf16 ? DType::bf16 : DType::f32;
}

std::array<ops::GemmSupport, 3> product_support(const DeviceTraits& traits, const LinearPlan& plan,
                                                int64_t rows, const TensorFormat& gradient) {
  const int64_t in = plan.site.in_features;
  const int64_t out = plan.site.out_features;
  const auto support = [&traits](const GemmPlan& gemm, DType result, const ops::GemmExtents& mnk) {
    return ops::gemm_support(traits, {gemm.a, gemm.b, result, gemm.fast_accumulate}, mnk);
  };
  return {support(plan.fprop, plan.activation, {rows, out, in}),
          support(plan.dgrad, plan.activation, {rows, in, out}),
          support(plan.wgrad, gradient_result(plan, gradient), {out, in, rows})};
}

std::array<std::string_view, 3> dequantized_because(const DeviceTraits& traits,
                                                    const LinearPlan& plan, int64_t rows,
                                                    const TensorFormat& gradient) {
  std::array<std::string_view, 3> reasons;
  std::ranges::transform(product_support(traits, plan, rows, gradient), reasons.begin(),
                         [](const ops::GemmSupport& support) {
                           return support.dequantized ? support.reason : std::string_view{};
                         });
  return reasons;
}

}  // namespace fp8train
