#pragma once
// Token (and learned position) embedding. Tokens: int32 [B * T]; tables: fp32 [vocabulary, C] and
// [positions, C].

#include "device/stream.h"
#include "tensor/view.h"

namespace fp8train::ops {

/// The arguments of embedding_forward().
struct EmbeddingForward {
  ConstView tokens, table;
  ConstView positions;  ///< may be empty
  int64_t sequence_length = 0, position_offset = 0;
  View y;
  ConstView document_starts;  ///< int32 [B * T], or empty: positions count from there
};

/// y[r] = table[tokens[r]] (+ positions[position_offset + r % T - document_starts[r]]), where T is
/// sequence_length. y: [B * T, C] in fp32, bf16 or fp16. A token outside the table gives a row of
/// NaN.
void embedding_forward(Stream stream, const EmbeddingForward& call);

/// The arguments of embedding_backward().
struct EmbeddingBackward {
  ConstView tokens, dy;
  View table_grad;
  View position_grad;  ///< may be empty
  int64_t sequence_length = 0;
  View scratch;
  ConstView document_starts;  ///< as in EmbeddingForward
};

/// table_grad[tokens[r]] += dy[r], nothing for a token outside the table; position_grad of r's
/// position += dy[r]. dy: [B * T, C] in fp32, bf16 or fp16. Deterministic: each row of a gradient
/// sums its tokens in order. `scratch`: int32 [2 * B * T].
void embedding_backward(Stream stream, const EmbeddingBackward& call);

}  // namespace fp8train::ops
