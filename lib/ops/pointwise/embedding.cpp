#include "ops/pointwise/embedding.h"

#include "base/trace.h"
#include "ops/dispatch/op_table.h"
#include "ops/support/checks.h"

namespace fp8train::ops {
namespace {

bool is_table(const ConstView& table, int64_t columns) {
  return table.dtype == DType::f32 && table.shape.rank() == 2 && table.shape.back() == columns;
}

}  // namespace

void embedding_forward(Stream stream, ConstView tokens, ConstView table, ConstView positions,
                       int64_t sequence_length, int64_t position_offset, View y) {
  const int64_t columns = y.shape.back();
  check(is_float_type(y.dtype), "embedding_forward: y must be fp32, bf16 or fp16");
  check(holds(tokens, DType::i32, y.shape.rows()), "embedding_forward: tokens must be int32 [B*T]");
  check(is_table(table, columns), "embedding_forward: table must be fp32 [vocabulary, C]");
  check(sequence_length > 0, "embedding_forward: sequence length must be positive");
  if (!positions.empty()) {
    check(is_table(positions, columns), "embedding_forward: positions must be fp32 [positions, C]");
    check(position_offset >= 0 && position_offset + sequence_length <= positions.shape[0],
          "embedding_forward: more positions than the table has");
  }
  const TraceSpan span("embedding_forward");
  dispatch<&OpTable::embedding_forward>(stream, tokens, table, positions, sequence_length,
                                        position_offset, y);
}

void embedding_backward(Stream stream, ConstView tokens, ConstView dy, View table_grad,
                        View position_grad, int64_t sequence_length, View scratch) {
  const int64_t columns = dy.shape.back();
  check(is_float_type(dy.dtype), "embedding_backward: dy must be fp32, bf16 or fp16");
  check(holds(tokens, DType::i32, dy.shape.rows()),
        "embedding_backward: tokens must be int32 [B * T]");
  check(is_table(table_grad, columns), "embedding_backward: table_grad must be fp32 [.., C]");
  check(sequence_length > 0, "embedding_backward: sequence length must be positive");
  if (!position_grad.empty()) {
    check(is_table(position_grad, columns) && sequence_length <= position_grad.shape[0],
          "embedding_backward: position_grad must be fp32 [positions, C]");
  }
  check(has_room(scratch, DType::i32, 2 * tokens.count()),
        "embedding_backward: scratch must be int32 [2 * B * T]");
  const TraceSpan span("embedding_backward");
  dispatch<&OpTable::embedding_backward>(stream, tokens, dy, table_grad, position_grad,
                                         sequence_length, scratch);
}

}  // namespace fp8train::ops
