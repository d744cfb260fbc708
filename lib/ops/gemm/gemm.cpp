#include "ops/gemm/gemm.h"

#include "ops/cast/scale_blocks.h"
#include "ops/dispatch/op_table.h"
#include "ops/gemm/gemm_support.h"
#include "ops/support/checks.h"

namespace fp8train::ops {
namespace {

bool is_low_precision(DType dtype) {
  return is_fp8(dtype) || dtype == DType::bf16;
}

bool can_multiply(DType a, DType b) {
  return (a == b && (a == DType::f32 || a == DType::f16)) ||
         (is_low_precision(a) && is_low_precision(b));
}

/// Codes with a scale for each block.
void check_blocks(const GemmOperand& operand) {
  const Encoded& tensor = operand.tensor;
  check_blockwise(tensor, tensor.codes.shape);
  const bool by_row = tensor.format.row_scaled;
  check((tensor.tensor_scale != nullptr) == (tensor.format.is_two_level() && !by_row) &&
            (tensor.row_scales != nullptr) == by_row,
        "gemm: above e4m3 scales, and only there, is a scale of the tensor or of each row");
}

void check_operands(const Gemm& call) {
  if (!call.a.has_blocks() && !call.b.has_blocks()) {
    check(can_multiply(call.a.matrix().dtype, call.b.matrix().dtype),
          "gemm: operands must be fp32, or fp16, or a mix of e4m3, e5m2 and bf16");
    return;
  }
  check(call.a.has_blocks() && call.b.has_blocks(), "gemm: both operands have blocks or neither");
  check_blocks(call.a);
  check_blocks(call.b);
  check(!call.a.transposed && call.b.transposed, "gemm: codes of blocks are stored along K");
  static const DeviceTraits cpu;
  check(gemm_support(cpu, {call.a.tensor.format, call.b.tensor.format}).native,
        "gemm: no product reads these formats");
}

void check_gemm(const Gemm& call) {
  for (const GemmOperand* operand : {&call.a, &call.b}) {
    check(operand->tensor.format.dtype == operand->matrix().dtype,
          "gemm: codes have the type of their format");
  }
  const ConstView a = call.a.matrix();
  const ConstView b = call.b.matrix();
  check(a.shape.rank() == 2 && b.shape.rank() == 2 && call.c.shape.rank() == 2,
        "gemm: matrices expected");
  check(a.count() > 0 && b.count() > 0 && !a.empty() && !b.empty() && !call.c.empty(),
        "gemm: empty matrix");
  check_operands(call);
  check(is_float_type(call.c.dtype), "gemm: c must be fp32, bf16 or fp16");
  check(a.shape[call.a.transposed ? 1 : 0] == call.c.shape[0] &&
            b.shape[call.b.transposed ? 0 : 1] == call.c.shape[1] &&
            b.shape[call.b.transposed ? 1 : 0] == call.depth(),
        "gemm: shapes do not fit");
  check(call.beta == 0.0F || (call.beta == 1.0F && call.c.dtype == DType::f32),
        "gemm: beta must be 0, or 1 with an fp32 c");
  check(call.bias.empty() || holds(call.bias, DType::f32, call.c.shape[1]),
        "gemm: bias must be fp32 [N]");
}

}  // namespace

void gemm(Stream stream, const Gemm& call) {
  check_gemm(call);
  dispatch_as<&OpTable::gemm>(call.a.has_blocks() ? "scaled_gemm" : "gemm", stream, call);
}

void pack_operand(Stream stream, const GemmOperand& b, View packed, View scratch) {
  check(!b.tensor.empty() && b.matrix().shape.rank() == 2 && packed.dtype == DType::u8,
        "pack_operand: a matrix and bytes expected");
  dispatch<&OpTable::pack_operand>(stream, b, packed, scratch);
}

void tune_gemms(Device& device, const std::string& folder) {
  dispatch<&OpTable::tune_gemms>(device, folder);
}

}  // namespace fp8train::ops
