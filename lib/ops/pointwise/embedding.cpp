#include "ops/pointwise/embedding.h"

#include "ops/dispatch/op_table.h"
#include "ops/support/checks.h"

namespace fp8train::ops {
namespace {

bool is_table(const ConstView& table, int64_t columns) {
  return table.dtype == DType::f32 && table.shape.rank() == 2 && table.shape.back() == columns;
}

bool has_starts(const ConstView& starts, const ConstView& tokens) {
  return starts.empty() || holds(starts, DType::i32, tokens.count());
}

}  // namespace

void embedding_forward(Stream stream, const EmbeddingForward& call) {
  const int64_t columns = call.y.shape.back();
  check(is_float_type(call.y.dtype), "embedding_forward: y must be fp32, bf16 or fp16");
  check(holds(call.tokens, DType::i32, call.y.shape.rows()),
        "embedding_forward: tokens must be int32 [B*T]");
  check(is_table(call.table, columns), "embedding_forward: table must be fp32 [vocabulary, C]");
  check(call.sequence_length > 0, "embedding_forward: sequence length must be positive");
  if (!call.positions.empty()) {
    check(is_table(call.positions, columns),
          "embedding_forward: positions must be fp32 [positions, C]");
    check(call.position_offset >= 0 &&
              call.position_offset + call.sequence_length <= call.positions.shape[0],
          "embedding_forward: more positions than the table has");
  }
  check(has_starts(call.document_starts, call.tokens),
        "embedding_forward: document_starts must be int32 [B * T]");
  dispatch<&OpTable::embedding_forward>(stream, call);
}

void embedding_backward(Stream stream, const EmbeddingBackward& call) {
  const int64_t columns = call.dy.shape.back();
  check(is_float_type(call.dy.dtype), "embedding_backward: dy must be fp32, bf16 or fp16");
  check(holds(call.tokens, DType::i32, call.dy.shape.rows()),
        "embedding_backward: tokens must be int32 [B * T]");
  check(is_table(call.table_grad, columns), "embedding_backward: table_grad must be fp32 [.., C]");
  check(call.sequence_length > 0, "embedding_backward: sequence length must be positive");
  if (!call.position_grad.empty()) {
    check(is_table(call.position_grad, columns) &&
              call.sequence_length <= call.position_grad.shape[0],
          "embedding_backward: position_grad must be fp32 [positions, C]");
  }
  check(has_starts(call.document_starts, call.tokens),
        "embedding_backward: document_starts must be int32 [B * T]");
  check(has_space(call.scratch, DType::i32, 2 * call.tokens.count()),
        "embedding_backward: scratch must be int32 [2 * B * T]");
  dispatch<&OpTable::embedding_backward>(stream, call);
}

}  // namespace fp8train::ops
