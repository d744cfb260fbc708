#include "nn/linear_product.h"

#include <algorithm>

#include "base/error.h"
#include "ops/cast/quantize.h"
#include "ops/cast/scale_blocks.h"
#include "ops/gemm/planned_gemm.h"
#include "ops/pointwise/elementwise.h"
#include "tensor/tensor.h"

namespace fp8train {
namespace {

/// The scale of the tensor for each of its rows.
View row_scales(const StepContext& context, const Encoded& tensor) {
  const View scales = allocate(*context.scratch, DType::f32, {tensor.codes.shape.rows()});
  ops::fill(context.stream, scales, 1.0F);
  ops::scale_by(context.stream, scales, tensor.tensor_scale);
  return scales;
}

/// The operand as the library reads it next to `other`: codes next to a plain operand as their
/// values, one scale of a tensor next to those of rows as scales of rows.
ops::GemmOperand read_next_to(const StepContext& context, ops::GemmOperand operand,
                              const ops::GemmOperand& other) {
  if (operand.is_plain()) {
    return operand;
  }
  Encoded& codes = operand.tensor;
  if (other.is_plain()) {  // what is packed is codes
    const View values = allocate(*context.scratch, other.matrix().dtype, codes.codes.shape);
    ops::dequantize(context.stream, codes, values);
    return {values, operand.transposed};
  }
  const TensorFormat format = ops::read_as(codes.format, other.tensor.format);
  if (format.block != codes.format.block) {
    codes.scales = row_scales(context, codes);
    codes.tensor_scale = nullptr;
    codes.format = format;
  }
  return operand;
}

/// Columns of what is stored, copied.
View copied_columns(const StepContext& context, const ConstView& x, int64_t first, int64_t count) {
  const View columns = allocate(*context.scratch, x.dtype, {x.shape.rows(), count});
  ops::copy_columns(context.stream, x, first, columns);
  return columns;
}

/// `count` of the contracted extent, from `first` on.
ops::GemmOperand part_of(const StepContext& context, const ops::GemmOperand& operand, int64_t first,
                         int64_t count) {
  ops::GemmOperand part = {operand.tensor, operand.transposed};
  Encoded& codes = part.tensor;
  const auto part_along = [&](const View& x, int64_t begin, int64_t extent) {
    return operand.transposed ? rows_of(x, begin, extent)
                              : copied_columns(context, x, begin, extent);
  };
  codes.codes = part_along(codes.codes, first, count);
  if (operand.transposed && codes.row_scales != nullptr) {
    codes.row_scales += first;
  }
  const ScaleBlock block = operand.tensor.format.block;
  if (!operand.has_blocks() || (block == per::row && !operand.transposed)) {
    return part;
  }
  const ops::ScaleGrid grid = ops::scale_grid(block, operand.matrix().shape.rows(),
                                              operand.matrix().shape.back(), codes.layout);
  const int64_t width = operand.transposed ? grid.height : grid.width;
  check(first % width == 0 && count % width == 0 && codes.layout == ScaleLayout::row_major,
        "parts of the contracted extent are whole blocks");
  codes.scales =
      part_along(reshaped(codes.scales, {grid.rows, grid.columns}), first / width, count / width);
  codes.scales = reshaped(codes.scales, {codes.scales.count()});
  codes.cast_scales = nullptr;
  return part;
}

/// A product of the parts [first, first + count) of all pieces.
struct PartsOfProduct {
  const StepContext* context;
  const LinearProduct* product;
  std::span<const int64_t> pieces;

  void sum(int64_t first, int64_t count, const View& c) const {
    if (count > 1) {
      sum(first, count / 2, c);
      ArenaScope scope(*context->scratch);
      const View right = allocate(*context->scratch, DType::f32, c.shape);
      sum(first + count / 2, count / 2, right);
      return ops::add(context->stream, c, right, c);
    }
    LinearProduct of_part = *product;
    of_part.c = c;
    of_part.beta = 0.0F;
    of_part.bias = first == 0 ? product->bias : ConstView{};
    int64_t begin = 0;
    for (const int64_t piece : pieces) {
      ArenaScope scope(*context->scratch);
      const int64_t extent = piece / context->tensor_parts;
      of_part.a = part_of(*context, product->a, begin + first * extent, extent);
      of_part.b = part_of(*context, product->b, begin + first * extent, extent);
      multiply(*context, of_part);
      of_part.beta = 1.0F;
      of_part.bias = {};
      begin += piece;
    }
  }
};

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
  ops::gemm(context.stream, ops::with_scratch(*context.device, *context.scratch, call));
}

void multiply_in_parts(const StepContext& context, const LinearProduct& product,
                       std::span<const int64_t> pieces) {
  LinearProduct of_rank = product;
  if (context.tensor_ranks != nullptr && context.tensor_ranks->rank() > 0) {
    of_rank.bias = {};
  }
  const bool by_pieces = context.sums_in_fp32 && pieces.size() > 1;  // as where a rank has all
  if (context.tensor_parts == 1 && !by_pieces) {
    return multiply(context, of_rank);
  }
  PartsOfProduct{&context, &of_rank, pieces}.sum(0, context.tensor_parts, product.c);
}

void multiply_over_ranks(const StepContext& context, const LinearProduct& product,
                         std::span<const int64_t> pieces) {
  ArenaScope scope(*context.scratch);
  const int64_t ranks = context.tensor_ranks == nullptr ? 1 : context.tensor_ranks->ranks();
  LinearProduct partial = product;
  partial.c = allocate(*context.scratch, context.partial_type(product.c.dtype),
                       {product.c.shape.rows() * ranks, product.c.shape.back()});
  multiply_in_parts(context, partial, pieces);
  if (context.tensor_ranks != nullptr) {
    context.tensor_ranks->sum_rows(context, partial.c, product.c);
  } else {
    ops::cast(context.stream, partial.c, product.c);
  }
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
