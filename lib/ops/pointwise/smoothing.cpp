#include "ops/pointwise/smoothing.h"

#include "ops/dispatch/op_table.h"
#include "ops/support/checks.h"

namespace fp8train::ops {

void find_smoothing(Stream stream, ConstView gate_up, View scale) {
  check(is_float_type(gate_up.dtype), "find_smoothing: fp32, bf16 or fp16 expected");
  check(gate_up.shape.back() % 2 == 0 && holds(scale, DType::f32, gate_up.shape.back() / 2),
        "find_smoothing: scale must be fp32 [F] for gate_up [rows, 2 F]");
  dispatch<&OpTable::find_smoothing>(stream, gate_up, scale);
}

void divide_columns(Stream stream, ConstView x, ConstView scale, View y, bool add) {
  check(x.dtype == DType::f32 && y.dtype == DType::f32 && x.count() == y.count(),
        "divide_columns: x and y must be fp32 of one count");
  check(holds(scale, DType::f32, x.shape.back()), "divide_columns: scale must be fp32 [columns]");
  dispatch<&OpTable::divide_columns>(stream, x, scale, y, add);
}

}  // namespace fp8train::ops
