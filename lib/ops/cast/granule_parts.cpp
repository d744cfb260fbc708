#include "ops/cast/granule_parts.h"

#include "base/error.h"
#include "base/trace.h"
#include "ops/cast/granules.h"
#include "ops/dispatch/op_table.h"
#include "ops/support/checks.h"

namespace fp8train::ops {
namespace {

int64_t granules_of(const Shape& matrix, Granularity granularity) {
  return granule_grid(granularity, matrix.rows(), matrix.back(), ScaleLayout::row_major).count;
}

void check_part(const MatrixPart& x, Granularity granularity, const ConstView& amax) {
  check(x.values.count() == 0 || x.values.dtype == DType::f32, "a part of a matrix is in fp32");
  check(x.first >= 0 && x.first + x.values.count() <= x.matrix.count(),
        "a part lies within its matrix");
  check(amax.dtype == DType::f32 && amax.count() == granules_of(x.matrix, granularity),
        "fp32 maxima, one for each granule, expected");
}

}  // namespace

void granule_part_amax(Stream stream, const MatrixPart& x, Granularity granularity, View amax) {
  check_part(x, granularity, amax);
  const TraceSpan span("granule_part_amax");
  dispatch<&OpTable::granule_part_amax>(stream, x, granularity, amax);
}

void quantize_granule_part(Stream stream, const GranulePartCast& call) {
  check_granule_format(call.format);
  check_part(call.x, call.format.granularity, call.amax);
  const int64_t count = call.x.values.count();
  check(call.codes.dtype == call.format.dtype && call.codes.count() == count,
        "quantize_granule_part: codes for every value expected");
  check(call.rounded.empty() || (call.rounded.dtype == DType::f32 && call.rounded.count() == count),
        "quantize_granule_part: rounded values are fp32");
  const TraceSpan span("quantize_granule_part");
  dispatch<&OpTable::quantize_granule_part>(stream, call);
}

void find_granule_scales(Stream stream, ConstView amax, const Shape& shape,
                         const TensorFormat& format, ScaleLayout layout, bool transposed,
                         View scale_inv) {
  check_granule_format(format);
  check(amax.dtype == DType::f32 && amax.count() == granules_of(shape, format.granularity),
        "find_granule_scales: fp32 maxima, one for each granule, expected");
  check(!transposed || format.granularity == Granularity::block_128x128,
        "find_granule_scales: only squares are granules of the transposed matrix too");
  const Shape seen =
      transposed ? Shape{shape.back(), shape.rows()} : Shape{shape.rows(), shape.back()};
  const View codes = {nullptr, format.dtype, seen};
  check_granules({.codes = codes, .scale_inv = scale_inv}, format, layout, seen);
  const TraceSpan span("find_granule_scales");
  dispatch<&OpTable::find_granule_scales>(stream, amax, shape, format, layout, transposed,
                                          scale_inv);
}

}  // namespace fp8train::ops
