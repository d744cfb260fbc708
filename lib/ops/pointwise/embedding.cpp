#include "ops/pointwise/embedding.h"

#include "ops/dispatch/op_table.h"
#include "ops/support/checks.h"

namespace fp8train::ops {
namespace {

bool is_table(const ConstView& table, int64_t columns) {
  return table.dtype == DType::f32 && table.shape.rank() == 2 && table.shape.back() == columns;
}

bool has_starts(const ConstView& starts, int64_t first_row, int64_t rows) {
  return first_row >= 0 && (starts.empty() || has_space(starts, DType::i32, first_row + rows));
}

}  // namespace

void embedding_forward(Stream stream, const EmbeddingForward& call) {
  const int64_t columns = call.y.shape.back();
  check(is_float_type(call.y.dtype), "embedding_forward: y must be fp32, bf16 or fp16");
  const int64_t rows = call.tokens.empty() ? call.table.shape[0] : call.tokens.count();
  check(rows == call.y.shape.rows() && (call.tokens.empty() || call.tokens.dtype == DType::i32),
        "embedding_forward: tokens must be int32, one for each row of y");
  check(is_table(call.table, columns), "embedding_forward: table must be fp32 [vocabulary, C]");
  check(call.sequence_length > 0, "embedding_forward: sequence length must be positive");
  if (!call.positions.empty()) {
    check(is_table(call.positions, columns),
          "embedding_forward: positions must be fp32 [positions, C]");
    check(call.position_offset >= 0 &&
              call.position_offset + call.sequence_length <= call.positions.shape[0],
          "embedding_forward: more positions than the table has");
  }
  check(has_starts(call.document_starts, call.first_row, rows),
        "embedding_forward: document_starts must be int32 [B * T]");
  EmbeddingForward resolved = call;
  resolved.vocabulary = call.vocabulary == 0 ? call.table.shape[0] : call.vocabulary;
  dispatch<&OpTable::embedding_forward>(stream, resolved);
}

void embedding_backward(Stream stream, const EmbeddingBackward& call) {
  const int64_t columns = call.dy.shape.back();
  check(is_float_type(call.dy.dtype), "embedding_backward: dy must be fp32, bf16 or fp16");
  const int64_t rows = call.dy.shape.rows();
  check(call.table_grad.empty() ||
            (holds(call.tokens, DType::i32, rows) && is_table(call.table_grad, columns)),
        "embedding_backward: tokens must be int32 [rows], table_grad fp32 [.., C]");
  check(call.sequence_length > 0, "embedding_backward: sequence length must be positive");
  if (!call.position_grad.empty()) {
    check(is_table(call.position_grad, columns) &&
              call.sequence_length <= call.position_grad.shape[0],
          "embedding_backward: position_grad must be fp32 [positions, C]");
  }
  check(has_starts(call.document_starts, call.first_row, rows),
        "embedding_backward: document_starts must be int32 [B * T]");
  check(call.table_grad.empty() || has_space(call.scratch, DType::i32, 2 * rows),
        "embedding_backward: scratch must be int32 [2 * rows]");
  dispatch<&OpTable::embedding_backward>(stream, call);
}

}  // namespace fp8train::ops
