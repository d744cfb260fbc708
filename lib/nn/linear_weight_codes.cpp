// A frozen weight that is codes alone, and operands in the layout of the device's library.

#include "nn/linear_weight.h"
#include "ops/cast/quantize.h"
#include "ops/gemm/planned_gemm.h"
#include "ops/pointwise/elementwise.h"

namespace fp8train {
namespace {

/// Codes with scales of square blocks, `grid` of them, transposed in scratch.
Encoded transposed_blocks(const StepContext& context, const Encoded& part, const Shape& grid) {
  const View codes = allocate(*context.scratch, part.codes.dtype,
                              {part.codes.shape.back(), part.codes.shape.rows()});
  ops::transpose_codes(context.stream, part.codes, codes);
  const View scales = allocate(*context.scratch, DType::f32, {grid.back(), grid.rows()});
  for (int64_t column = 0; column < grid.back(); ++column) {
    ops::copy_columns(context.stream, reshaped(part.scales, grid), column,
                      reshaped(rows_of(scales, column, 1), {grid.rows(), 1}));
  }
  return {codes, part.format, reshaped(scales, {scales.count()})};
}

/// Whether products read codes of w as they are: not as values, next to a plain operand, and not in
/// the order of a short accumulator.
bool reads_codes_alone(const GemmPlan& gemm) {
  return gemm.a.is_scaled() && !gemm.emulate_accumulator;
}

}  // namespace

void LinearWeight::set_codes(const Parameter* scales, const TensorFormat& format) {
  code_scales_ = scales;
  code_format_ = format;
  weight_->gathered = {};
}

Encoded LinearWeight::codes() const {
  const View& bytes = weight_->stored_value.codes;
  return {{bytes.data, code_format_.dtype, weight_->shape},
          code_format_,
          reshaped(code_scales_->value, {code_scales_->shape.count()})};
}

View LinearWeight::decoded(const StepContext& context, DType type) const {
  const View values = fp8train::allocate(*context.scratch, type, weight_->shape);
  ops::dequantize(context.stream, codes(), values);
  return values;
}

ops::GemmOperand LinearWeight::operand_of_codes(const StepContext& context, Along along) const {
  const bool transposed = along == Along::columns;
  if (!w_.reads_codes(context, along)) {
    return {decoded(context, plan_.activation), transposed};
  }
  const TensorFormat& format = w_.slot(along)->format;
  const bool as_they_are =
      format.dtype == code_format_.dtype && format.block == code_format_.block &&
      dtype_of(format.scale_type) == DType::f32 && (!transposed || format.block.is_square()) &&
      !context.device->traits().fp8_gemm_by_library;
  if (as_they_are) {
    Encoded as_read =
        transposed ? transposed_blocks(context, codes(), code_scales_->shape) : codes();
    as_read.format = format;
    return as_read;
  }
  const View values = decoded(context, DType::f32);
  const QuantizedInput::Operands made =
      transposed ? w_.operands(context, values, {nullptr, context.scratch})
                 : w_.operands(context, values, {context.scratch, nullptr});
  return transposed ? made.along_columns : made.along_rows;
}

void LinearWeight::allocate_packed(Device& device, ParameterStore& store, bool trains,
                                   bool runs_backward) {
  for (const Along along : {Along::rows, Along::columns}) {
    const bool of_codes =
        is_scaled(along) && (along == Along::columns || trains || plan_.evaluate_scaled);
    const GemmPlan& gemm = along == Along::rows ? plan_.fprop : plan_.dgrad;
    const bool is_read = along == Along::rows ? !plan_.is_smoothed() : runs_backward;
    if (!is_read || (of_codes && !reads_codes_alone(gemm))) {
      continue;
    }
    ops::GemmOperand b = made_operand(along, of_codes);
    b.transposed = !b.transposed;  // as multiply() calls it
    const auto bytes = static_cast<int64_t>(ops::packed_bytes(device.traits(), b));
    if (bytes > 0) {
      const View memory = store.operand_memory(device, *weight_, MemoryCategory::quantized_weights,
                                               DType::u8, {bytes});
      packed_.push_back({along, of_codes, memory});
    }
  }
}

/// A frozen weight does not change with an update.
void LinearWeight::pack(const StepContext& context, Refresh what) const {
  if (what == Refresh::after_update && !weight_->trained) {
    return;
  }
  for (const Packed& packed : packed_) {
    ops::GemmOperand b = made_operand(packed.along, packed.of_codes);
    b.transposed = !b.transposed;
    ops::pack_planned(context.stream, *context.scratch, b, packed.memory);
  }
}

}  // namespace fp8train
