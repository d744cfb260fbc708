#pragma once
// Token (and learned position) embedding. Tokens: int32 [B * T]; tables: fp32 [vocabulary, C] and
// [positions, C]. A rank may have some rows of the table, or some of the B * T rows: it looks up
// all tokens in its part of the table, and the sum over ranks is what the whole table gives;
// positions are added to its own rows of the sum.

#include "device/stream.h"
#include "tensor/view.h"

namespace fp8train::ops {

/// The arguments of embedding_forward().
struct EmbeddingForward {
  ConstView tokens;  ///< empty: row r of y takes row r of the table
  ConstView table;
  ConstView positions;  ///< may be empty
  int64_t sequence_length = 0, position_offset = 0;
  View y;
  ConstView document_starts;  ///< int32 [B * T], or empty: positions count from there
  int64_t first_token = 0;    ///< of the table, in the vocabulary
  int64_t vocabulary = 0;     ///< rows of all parts of the table; 0: this one is all
  int64_t first_row = 0;      ///< of y, among all B * T
};

/// y[r] = table[tokens[r] - first_token] (+ positions[position_offset + q % T -
/// document_starts[q]], q = first_row + r), where T is sequence_length. y: [rows, C] in fp32, bf16
/// or fp16. A token that another part of the table has gives zeros (and the position), one outside
/// the vocabulary NaN.
void embedding_forward(Stream stream, const EmbeddingForward& call);

/// The arguments of embedding_backward().
struct EmbeddingBackward {
  ConstView tokens, dy;
  View table_grad;     ///< may be empty, as `tokens` and `scratch` then may
  View position_grad;  ///< may be empty
  int64_t sequence_length = 0;
  View scratch;
  ConstView document_starts;  ///< as in EmbeddingForward
  int64_t first_token = 0, first_row = 0;
};

/// table_grad[tokens[r] - first_token] += dy[r], nothing for a token outside the table;
/// position_grad of r's position += dy[r]. dy: [rows, C] in fp32, bf16 or fp16. Deterministic: each
/// row of a gradient sums its tokens in order. `scratch`: int32 [2 * rows].
void embedding_backward(Stream stream, const EmbeddingBackward& call);

}  // namespace fp8train::ops
