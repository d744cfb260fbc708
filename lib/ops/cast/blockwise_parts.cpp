#include "ops/cast/blockwise_parts.h"

#include "base/error.h"
#include "ops/cast/scale_blocks.h"
#include "ops/dispatch/op_table.h"
#include "ops/support/checks.h"

namespace fp8train::ops {
namespace {

int64_t blocks_of(const Shape& matrix, ScaleBlock block) {
  return block_grid(block, matrix.rows(), matrix.back()).count;
}

void check_part(const MatrixPart& x, ScaleBlock block, const ConstView& amax) {
  check(x.values.count() == 0 || x.values.dtype == DType::f32, "a part of a matrix is in fp32");
  check(x.first >= 0 && x.first + x.values.count() <= x.matrix.count(),
        "a part lies within its matrix");
  check(amax.dtype == DType::f32 && amax.count() == blocks_of(x.matrix, block),
        "fp32 maxima, one for each block, expected");
}

}  // namespace

void blockwise_part_amax(Stream stream, const MatrixPart& x, ScaleBlock block, View amax) {
  check_part(x, block, amax);
  dispatch<&OpTable::blockwise_part_amax>(stream, x, block, amax);
}

void quantize_blockwise_part(Stream stream, const BlockwisePartCast& call) {
  check_part(call.x, call.format.block, call.amax);
  const int64_t count = call.x.values.count();
  check(call.codes.dtype == call.format.dtype && call.codes.count() == count,
        "quantize_blockwise_part: codes for every value expected");
  check(call.rounded.empty() || (call.rounded.dtype == DType::f32 && call.rounded.count() == count),
        "quantize_blockwise_part: rounded values are fp32");
  dispatch<&OpTable::quantize_blockwise_part>(stream, call);
}

void find_block_scales(Stream stream, const BlockScaleSearch& call) {
  check(call.amax.dtype == DType::f32 &&
            call.amax.count() == blocks_of(call.shape, call.format.block),
        "find_block_scales: fp32 maxima, one for each block, expected");
  check(!call.transposed || call.format.block.is_square(),
        "find_block_scales: only squares are blocks of the transposed matrix too");
  check_blockwise(
      {{nullptr, call.format.dtype, call.seen()}, call.format, call.scales, call.layout},
      call.seen());
  dispatch<&OpTable::find_block_scales>(stream, call);
}

}  // namespace fp8train::ops
