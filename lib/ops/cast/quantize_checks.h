#pragma once
// Conditions on casts with one scale per tensor, for quantize and for the operations that cast
// their result themselves.

#include "ops/cast/quantize.h"
#include "ops/support/checks.h"

namespace fp8train::ops {

/// Codes for x, seen as a matrix [rows, last extent].
inline void check_cast(const ConstView& x, const QuantizedView& out) {
  check(is_code_type(out.format.dtype), "quantize: the format must be e4m3, e5m2 or int8");
  check(is_fp8(out.format.dtype) || out.columnwise_codes.empty(),
        "quantize: int8 codes are not transposed");
  check(out.format.block == per::tensor && out.format.rounding == Rounding::nearest_even,
        "quantize: one scale per tensor and nearest-even rounding expected");
  check(out.scale != nullptr, "quantize: no scale");
  if (!out.codes.empty()) {
    check(out.codes.dtype == out.format.dtype, "quantize: codes must be as the format says");
    check(x.count() == out.codes.count(), "quantize: counts differ");
  }
  if (!out.columnwise_codes.empty()) {
    const Shape& shape = out.codes.empty() ? x.shape : out.codes.shape;
    const Shape transposed = {shape.back(), shape.rows()};
    check(
        out.columnwise_codes.shape == transposed && out.columnwise_codes.dtype == out.format.dtype,
        "quantize: transposed codes must be [columns, rows] of the same type");
  }
}

/// The result y of an operation and where its cast goes.
inline void check_sink(const ConstView& y, const QuantizeSink& sink) {
  check(!y.empty() || !sink.out.empty() || y.count() == 0, "no place for the result");
  if (sink.out.empty()) {
    check(sink.statistics == nullptr, "quantize: statistics without codes");
    return;
  }
  check_cast(y, sink.out);
  check(is_fp8(sink.out.format.dtype), "quantize: an operation casts its result to FP8 only");
  check(sink.out.codes.empty() || same_matrix(y, sink.out.codes),
        "quantize: the codes must have the rows of the result");
}

}  // namespace fp8train::ops
