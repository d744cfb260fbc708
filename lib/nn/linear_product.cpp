#include "nn/linear_product.h"

#include <algorithm>
#include <utility>

#include "ops/cast/quantize.h"
#include "ops/pointwise/elementwise.h"
#include "tensor/tensor.h"

namespace fp8train {
namespace {

/// The values of a quantized operand that is read as they are, in scratch.
LinearOperand plain_values(const StepContext& context, const LinearOperand& operand, DType dtype) {
  const View values = allocate(*context.scratch, dtype, operand.quantized.rowwise.codes.shape);
  ops::dequantize(context.stream, operand.quantized, values);
  return {.plain = values, .quantized = {}, .along_columns = operand.along_columns};
}

/// The scale of the tensor for each of its rows.
View row_scales(const StepContext& context, const QuantizedTensor& tensor, int64_t rows) {
  const View scales = allocate(*context.scratch, DType::f32, {rows});
  ops::fill(context.stream, scales, 1.0F);
  ops::scale_by(context.stream, scales, tensor.tensor_scale_inv);
  return scales;
}

/// The operands that the GEMM library reads. Contiguous along the contracted extent means that the
/// transpose of the second operand is stored.
ops::GemmOperand gemm_operand(const StepContext& context, const LinearOperand& operand,
                              const TensorFormat& other, bool is_second) {
  const bool lacks_columnwise = operand.along_columns && operand.quantized.columnwise.codes.empty();
  ops::GemmOperand result = {operand.plain, is_second != lacks_columnwise, operand.quantized};
  if (operand.quantized.empty()) {
    return result;
  }
  QuantizedTensor& quantized = result.quantized;
  if (operand.along_columns && !lacks_columnwise) {
    quantized.rowwise = std::exchange(quantized.columnwise, {});
  }
  const TensorFormat format = ops::read_as(quantized.format, other);
  if (format.block != quantized.format.block) {
    quantized.rowwise.scale_inv =
        row_scales(context, quantized, quantized.rowwise.codes.shape.rows());
    quantized.tensor_scale_inv = nullptr;
    quantized.format = format;
  }
  return result;
}

}  // namespace

ScaleLayout block_layout(const DeviceTraits& traits) {
  return traits.fp8_gemm_by_library ? ScaleLayout::cublaslt : ScaleLayout::row_major;
}

void multiply(const StepContext& context, const LinearProduct& product) {
  ArenaScope scope(*context.scratch);
  const DType plain_type = (product.a.dequantize ? product.b : product.a).plain.dtype;
  const LinearOperand a =
      product.a.dequantize ? plain_values(context, product.a, plain_type) : product.a;
  const LinearOperand b =
      product.b.dequantize ? plain_values(context, product.b, plain_type) : product.b;
  ops::Gemm call = {.a = gemm_operand(context, a, b.quantized.format, false),
                    .b = gemm_operand(context, b, a.quantized.format, true),
                    .c = product.c,
                    .beta = product.beta,
                    .bias = product.bias,
                    .fast_accumulate = product.plan.fast_accumulate,
                    .emulate_accumulator = product.plan.emulate_accumulator};
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
