#include "nn/linear_product.h"

#include "ops/cast/quantize.h"
#include "ops/cast/scale_blocks.h"
#include "ops/pointwise/elementwise.h"
#include "tensor/tensor.h"

namespace fp8train {
namespace {

/// The values of a quantized operand that is read as they are, in scratch.
LinearOperand plain_values(const StepContext& context, const LinearOperand& operand, DType dtype) {
  const bool blockwise = !operand.blockwise.matrix.codes.empty();
  const View& codes = blockwise ? operand.blockwise.matrix.codes : operand.codes.codes;
  const View values = allocate(*context.scratch, dtype, codes.shape);
  if (blockwise) {
    ops::dequantize_blockwise(context.stream, operand.blockwise.matrix, operand.blockwise.format,
                              operand.blockwise.layout, values);
  } else {
    ops::dequantize(context.stream, operand.codes, values);
  }
  return {.plain = values, .codes = {}, .blockwise = {}, .along_columns = operand.along_columns};
}

ops::GemmOperand first(const LinearOperand& a) {
  if (!a.codes.columnwise_codes.empty()) {
    return {a.codes.columnwise_codes, false, a.codes.scale_inv};
  }
  if (!a.codes.empty()) {
    return {a.codes.codes, a.along_columns, a.codes.scale_inv};
  }
  return {a.plain, a.along_columns};
}

/// Contiguous along the contracted extent means that the transpose of the second operand is stored.
ops::GemmOperand second(const LinearOperand& b) {
  if (!b.codes.columnwise_codes.empty()) {
    return {b.codes.columnwise_codes, true, b.codes.scale_inv};
  }
  if (!b.codes.empty()) {
    return {b.codes.codes, !b.along_columns, b.codes.scale_inv};
  }
  return {b.plain, !b.along_columns};
}

/// The operand multiplied with one that has a scale for each block.
ops::ScaledGemmOperand matching_operand(const StepContext& context, const LinearOperand& operand,
                                        const TensorFormat& other) {
  if (!operand.blockwise.matrix.codes.empty()) {
    return operand.blockwise;
  }
  const QuantizedView& codes = operand.codes;
  const View matrix = operand.along_columns ? codes.columnwise_codes : codes.codes;
  const View scales = allocate(*context.scratch, DType::f32, {matrix.shape.rows()});
  ops::fill(context.stream, scales, 1.0F);
  ops::scale_by(context.stream, scales, codes.scale_inv);
  return {.matrix = {.codes = matrix, .scale_inv = scales},
          .format = read_as(codes.format, other),
          .layout = block_layout(context.device->traits())};
}

/// A place for codes of this shape, without memory.
ops::ScaledGemmOperand shape_only(const TensorFormat& format, const DeviceTraits& traits,
                                  int64_t rows, int64_t columns) {
  const ScaleLayout layout = block_layout(traits);
  const int64_t scales = ops::scale_grid(format.block, rows, columns, layout).count;
  const DType scale_type = format.scale_type == ScaleType::e8m0 ? DType::e8m0 : DType::f32;
  return {{.codes = {nullptr, format.dtype, {rows, columns}},
           .scale_inv = {nullptr, scale_type, {scales}}},
          format,
          layout};
}

}  // namespace

TensorFormat read_as(TensorFormat format, const TensorFormat& other) {
  if (format.block == per::tensor && other.block == per::row) {
    format.block = per::row;
  }
  return format;
}

ScaleLayout block_layout(const DeviceTraits& traits) {
  return traits.scaled_gemm_by_library ? ScaleLayout::cublaslt : ScaleLayout::row_major;
}

void multiply(const StepContext& context, const LinearProduct& product) {
  ArenaScope scope(*context.scratch);
  const DType plain_type = (product.a.dequantize ? product.b : product.a).plain.dtype;
  const LinearOperand a =
      product.a.dequantize ? plain_values(context, product.a, plain_type) : product.a;
  const LinearOperand b =
      product.b.dequantize ? plain_values(context, product.b, plain_type) : product.b;
  if (a.blockwise.matrix.codes.empty() && b.blockwise.matrix.codes.empty()) {
    ops::gemm(context.stream, {.a = first(a),
                               .b = second(b),
                               .c = product.c,
                               .beta = product.beta,
                               .bias = product.bias,
                               .fast_accumulate = product.fast_accumulate,
                               .emulate_accumulator = product.emulate_accumulator});
    return;
  }
  ops::ScaledGemm call = {.a = matching_operand(context, a, b.blockwise.format),
                          .b = matching_operand(context, b, a.blockwise.format),
                          .c = product.c,
                          .beta = product.beta,
                          .bias = product.bias,
                          .fast_accumulate = product.fast_accumulate,
                          .emulate_accumulator = product.emulate_accumulator};
  const size_t bytes = ops::scaled_gemm_scratch_bytes(context.device->traits(), call);
  if (bytes > 0) {
    call.scratch = allocate(*context.scratch, DType::u8, {static_cast<int64_t>(bytes)});
  }
  ops::scaled_gemm(context.stream, call);
}

std::array<std::string_view, 3> dequantized_because(const DeviceTraits& traits,
                                                    const LinearPlan& plan, int64_t rows) {
  const int64_t in = plan.site.in_features;
  const int64_t out = plan.site.out_features;
  const auto reason = [&traits](const GemmPlan& gemm, DType result, const Shape& mkn) {
    if (gemm.a.is_scaled() != gemm.b.is_scaled()) {
      return std::string_view{"straight-through: the rounded values, with an operand that is not"};
    }
    if (!blockwise(gemm.a) && !blockwise(gemm.b)) {
      return std::string_view{};
    }
    return ops::scaled_gemm_support(
               traits, {.a = shape_only(read_as(gemm.a, gemm.b), traits, mkn[0], mkn[1]),
                        .b = shape_only(read_as(gemm.b, gemm.a), traits, mkn[2], mkn[1]),
                        .c = {nullptr, result, {mkn[0], mkn[2]}},
                        .bias = {},
                        .fast_accumulate = gemm.fast_accumulate,
                        .scratch = {}})
        .reason;
  };
  return {reason(plan.fprop, plan.activation, {rows, in, out}),
          reason(plan.dgrad, plan.activation, {rows, out, in}),
          reason(plan.wgrad, DType::f32, {out, rows, in})};
}

}  // namespace fp8train
