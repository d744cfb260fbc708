#include "ops/attention/attention.h"

#include <algorithm>
#include <optional>

#include "base/math.h"
#include "ops/dispatch/op_table.h"
#include "ops/support/checks.h"

namespace fp8train::ops {
namespace {

void check_heads(const HeadsView& view, DType dtype, int64_t length, int64_t heads,
                 int64_t head_dim, bool may_be_empty = false) {
  check((view.data != nullptr || may_be_empty) && view.dtype == dtype,
        "attention: q, k, v and what belongs to them must share an element type");
  check(view.length_capacity >= length, "attention: a sequence is longer than its memory");
  check(view.row_stride >= heads * head_dim, "attention: rows overlap");
}

void check_attention(const AttentionShape& shape, const HeadsView& q, const HeadsView& k,
                     const HeadsView& v, const HeadsView& out, const AttentionCodes& codes) {
  check(codes.is_on() ? is_fp8(q.dtype) : is_float_type(q.dtype) && out.dtype == q.dtype,
        "attention: fp32, bf16, fp16 or codes with their scale expected");
  check(shape.batch > 0 && shape.query_length > 0 && shape.kv_heads > 0 &&
            shape.heads % shape.kv_heads == 0,
        "attention: kv_heads must divide heads, and nothing may be empty");
  check(shape.head_dim > 0 && shape.head_dim <= kMaxHeadDim,
        "attention: head_dim must be 1 .. 512");
  check(shape.key_length >= shape.query_length, "attention: fewer keys than queries");
  check_heads(q, q.dtype, shape.query_length, shape.heads, shape.head_dim);
  check_heads(k, q.dtype, shape.key_length, shape.kv_heads, shape.head_dim);
  check_heads(v, q.dtype, shape.key_length, shape.kv_heads, shape.head_dim);
  check_heads(out, out.dtype, shape.query_length, shape.heads, shape.head_dim,
              !codes.cast.out.empty());
}

void check_cast(const QuantizeSink& cast, int64_t rows, int64_t width) {
  const View& codes = cast.out.rowwise.codes;
  check(cast.out.empty() || (is_fp8(cast.out.format().dtype) && codes.shape.rows() == rows &&
                             codes.shape.back() == width),
        "attention: codes must have the rows of the tensor that is cast");
}

void check_documents(const DocumentStarts& starts, const AttentionShape& shape) {
  check(starts.empty() || (has_space(starts, DType::i32, shape.batch * shape.key_length) &&
                           starts.count() % shape.batch == 0),
        "attention: document_starts must be int32 [B, T], T at least Tk");
}

int64_t rows_of(const AttentionShape& shape) {
  return shape.batch * shape.heads * shape.query_length;
}

}  // namespace

void attention_forward(Stream stream, const AttentionForward& call) {
  const AttentionShape& shape = call.shape;
  check_attention(shape, call.q, call.k, call.v, call.out, call.codes);
  check_cast(call.codes.cast, shape.batch * shape.query_length, shape.heads * shape.head_dim);
  check_documents(call.document_starts, shape);
  check(call.log_sum_exp.empty() || holds(call.log_sum_exp, DType::f32, rows_of(call.shape)),
        "attention_forward: log_sum_exp must be fp32 [B, H, Tq] or empty");
  dispatch<&OpTable::attention_forward>(stream, call);
}

void attention_backward(Stream stream, const AttentionBackward& call) {
  const AttentionShape& shape = call.shape;
  const bool in_codes = call.codes.is_on();
  const bool is_cast = !call.codes.cast.out.empty();
  AttentionCodes written = call.codes;
  written.cast = {};
  check_attention(shape, call.q, call.k, call.v, call.out, written);
  check_cast(call.codes.cast, shape.batch * shape.query_length,
             (shape.heads + 2 * shape.kv_heads) * shape.head_dim);
  check_heads(call.dout, in_codes ? call.dout.dtype : call.q.dtype, shape.query_length, shape.heads,
              shape.head_dim);
  check_heads(call.dq, in_codes ? call.dq.dtype : call.q.dtype, shape.query_length, shape.heads,
              shape.head_dim, is_cast);
  check_documents(call.document_starts, shape);
  check(call.dk.dtype == call.dq.dtype || call.dk.dtype == DType::f32,
        "attention_backward: gradients must have the type of q, k and v, or those of k and v fp32");
  for (const HeadsView& gradient : {call.dk, call.dv}) {
    check_heads(gradient, call.dk.dtype, shape.key_length, shape.kv_heads, shape.head_dim, is_cast);
  }
  check(holds(call.log_sum_exp, DType::f32, rows_of(call.shape)),
        "attention_backward: log_sum_exp must be fp32 [B, H, T]");
  check(has_space(call.scratch, DType::f32, attention_backward_scratch(stream, call)),
        "attention_backward: scratch is too small");
  dispatch<&OpTable::attention_backward>(stream, call);
}

std::optional<size_t> attention_backward_workspace(Stream stream, const AttentionBackward& call) {
  return op_table(stream).attention_backward_workspace(stream, call);
}

int64_t attention_backward_scratch(Stream stream, const AttentionBackward& call) {
  const std::optional<size_t> library_bytes = attention_backward_workspace(stream, call);
  return library_bytes ? static_cast<int64_t>(ceil_div(*library_bytes, sizeof(float)))
                       : attention_backward_scratch(call.shape);
}

int64_t attention_backward_scratch(const AttentionShape& shape) {
  // cpu: fp32 sums of the gradients of keys and values, rows and columns rounded up to register
  // blocks. cuda: rowsum(out * dout), more than that only for very many small heads of a group.
  const int64_t rows = round_up(shape.key_length, 4);
  const int64_t columns = round_up(shape.head_dim, 16);
  return std::max(2 * shape.batch * shape.kv_heads * rows * columns, rows_of(shape));
}

std::string attention_kernels(Stream stream) {
  return op_table(stream).attention_kernels(stream);
}

void rope(Stream stream, const Rope& call) {
  check(is_float_type(call.x.dtype), "rope: fp32, bf16 or fp16 expected");
  check(call.head_dim % 2 == 0, "rope: head_dim must be even");
  check_heads(call.x, call.x.dtype, call.length, call.heads, call.head_dim);
  const int64_t needed = (call.position_offset + call.length) * (call.head_dim / 2);
  check(call.position_offset >= 0 && has_space(call.cosines, DType::f32, needed) &&
            has_space(call.sines, DType::f32, needed) &&
            call.cosines.shape.back() == call.head_dim / 2 &&
            call.sines.shape.back() == call.head_dim / 2,
        "rope: tables must be fp32 [max_positions, head_dim / 2] and reach the last position");
  check(call.document_starts.empty() ||
            holds(call.document_starts, DType::i32, call.batch * call.length),
        "rope: document_starts must be int32 [B, T]");
  dispatch<&OpTable::rope>(stream, call);
}

}  // namespace fp8train::ops
