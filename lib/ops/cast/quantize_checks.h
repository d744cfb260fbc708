#pragma once
// Conditions on casts with one scale per tensor, for quantize and for the operations that cast
// their result themselves.

#include "ops/cast/quantize.h"
#include "ops/support/checks.h"

namespace fp8train::ops {

/// Codes for x, seen as a matrix [rows, last extent].
inline void check_cast(const ConstView& x, const QuantizedTensor& out) {
  const TensorFormat& format = out.format();
  check(is_byte_code(format.dtype), "quantize: the format must have codes of one byte");
  check(is_fp8(format.dtype) || out.columnwise.codes.empty(),
        "quantize: only FP8 codes are transposed");
  check(format.block == per::tensor && format.rounding == Rounding::nearest_even,
        "quantize: one scale per tensor and nearest-even rounding expected");
  check(out.either().cast_scales != nullptr, "quantize: no scale");
  if (!out.rowwise.codes.empty()) {
    check(out.rowwise.codes.dtype == format.dtype, "quantize: codes must be as the format says");
    check(x.count() == out.rowwise.codes.count(), "quantize: counts differ");
  }
  if (!out.columnwise.codes.empty()) {
    const Shape& shape = out.rowwise.codes.empty() ? x.shape : out.rowwise.codes.shape;
    const Shape transposed = {shape.back(), shape.rows()};
    check(out.columnwise.codes.shape == transposed && out.columnwise.codes.dtype == format.dtype,
          "quantize: transposed codes must be [columns, rows] of the same type");
  }
}

/// The result y of an operation and where its cast goes.
inline void check_sink(const ConstView& y, const QuantizeSink& sink) {
  check(!y.empty() || !sink.out.empty() || y.count() == 0, "no output for the result");
  if (sink.out.empty()) {
    check(sink.statistics == nullptr, "quantize: statistics without codes");
    return;
  }
  check_cast(y, sink.out);
  check(is_fp8(sink.out.format().dtype), "quantize: an operation casts its result to FP8 only");
  check(sink.out.rowwise.codes.empty() || same_matrix(y, sink.out.rowwise.codes),
        "quantize: the codes must have the rows of the result");
}

}  // namespace fp8train::ops
