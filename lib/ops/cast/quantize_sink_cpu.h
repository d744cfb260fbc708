#pragma once
// Casts of a result while its pieces are in a thread's L1 cache, for operations with a
// QuantizeSink. Only for files compiled by fp8train_isa_sources.

#include "ops/cast/quantize.h"
#include "ops/cast/quantize_support_cpu.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {

/// Writes the codes of elements (row, column) .. (row, column + length - 1), at most kChunk, in
/// both orientations.
template <typename Code, typename Y>
FP8TRAIN_HD void cast_piece_as(const QuantizeSink& sink, const Y* values, int64_t row,
                               int64_t column, int64_t length, CastCounts& counts) {
  const QuantizedTensor& out = sink.out;
  const float scale = *out.either().cast_scales;
  Code buffer[kChunk];
  Code* const codes = out.rowwise.codes.empty() ? buffer
                                                : out.rowwise.codes.as<Code>() +
                                                      row * out.rowwise.codes.shape.back() + column;
  encode_chunk(values, scale, codes, length);
  if (sink.statistics != nullptr) {
    count_chunk(values, scale, codes, length, counts);
  }
  if (!out.columnwise.codes.empty()) {
    const int64_t rows = out.columnwise.codes.shape.back();
    Code* const to = out.columnwise.codes.as<Code>() + column * rows + row;
    for (int64_t i = 0; i < length; ++i) {
      to[i * rows] = codes[i];
    }
  }
}

/// Casts these elements as `sink` says: the amax, and codes unless it has none.
template <typename Y>
static __attribute__((noinline)) void cast_piece(const QuantizeSink& sink, const Y* values,
                                                 int64_t row, int64_t column, int64_t length,
                                                 CastCounts& counts) {
  if (sink.amax != nullptr) {
    counts.raise(largest_magnitude(values, length));
  }
  if (!sink.out.empty()) {
    with_fp8_type(sink.out.format().dtype, [&](auto tag) {
      cast_piece_as<typename decltype(tag)::Type>(sink, values, row, column, length, counts);
    });
  }
}

/// Row `row` of a view seen as a matrix; null where the view is empty.
template <typename Y>
FP8TRAIN_HD Y* row_of(const View& y, int64_t row) {
  return y.empty() ? nullptr : y.as<Y>() + row * y.shape.back();
}

/// Row `row` of a result [rows, width], made in pieces: produce(begin, length, to) writes the
/// elements from `begin` on, to `y` (the row in memory) or, where that is null, to a buffer.
template <typename Y, typename Produce>
FP8TRAIN_HD void produce_row(const QuantizeSink& sink, Y* y, int64_t row, int64_t width,
                             CastCounts& counts, Produce produce) {
  Y buffer[kChunk];
  for (int64_t begin = 0; begin < width; begin += kChunk) {
    const int64_t length = minimum(kChunk, width - begin);
    Y* const to = y == nullptr ? buffer : y + begin;
    produce(begin, length, to);
    if (!sink.empty()) {
      cast_piece(sink, to, row, begin, length, counts);
    }
  }
}

/// body(piece, counts) for all pieces of a result of `count` elements of Y, over the threads; then
/// the scalars of the cast.
template <typename Y, typename Body>
FP8TRAIN_HD void for_each_piece(const QuantizeSink& sink, int64_t pieces, int64_t count,
                                Body body) {
  const CastCounts counts = count_pieces(pieces, count, body);
  keep_counts<Y>(counts, count, sink.amax, sink.statistics);
  if (const Encoded& out = sink.out.either(); out.tensor_scale != nullptr) {
    *out.tensor_scale = reciprocal(*out.cast_scales);
  }
}

/// body(row, counts) for all rows of a result [rows, width].
template <typename Y, typename Body>
FP8TRAIN_HD void for_each_row(const QuantizeSink& sink, int64_t rows, int64_t width, Body body) {
  for_each_piece<Y>(sink, rows, rows * width, body);
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
