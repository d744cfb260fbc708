// Casts to and from scaled formats, and the upkeep of scales.

#include "ops/dispatch/meta_counts.h"

namespace fp8train::ops::meta {
namespace {

/// Returns the bytes of the scales of one orientation's blocks, and of what its values were
/// multiplied by where that is stored too.
OpBytes scales_bytes(const Encoded& view) {
  return bytes_of(view.scales) *
         (view.cast_scales != nullptr && !view.format.is_two_level() ? 2 : 1);
}

OpBytes written_bytes(const QuantizedTensor& out) {
  OpBytes bytes;
  for (const Encoded* part : {&out.rowwise, &out.columnwise}) {
    bytes += part->codes.empty() ? 0.0 : bytes_of(part->codes) + scales_bytes(*part);
  }
  return bytes;
}

/// Blocks: one kernel reads x once for both orientations. Rows: one for them; for columns a fill, a
/// pass for the maxima, one over the maxima, and another pass for the cast. A step of a cast is one
/// of these passes, or for columns two.
OpWork blocks_work(const ConstView& x, const QuantizedTensor& out, CastStep step) {
  OpWork work = {.bytes = bytes_of(x) + written_bytes(out), .launches = 1};
  if (out.format().block == per::row) {
    const bool along_rows = !out.rowwise.codes.empty();
    const bool along_columns = !out.columnwise.codes.empty();
    work.bytes += bytes_of(x) * ((along_rows ? 1 : 0) + (along_columns ? 2 : 0) - 1);
    work.launches = (along_rows ? 1 : 0) + (along_columns ? 4 : 0);
    if (along_columns && step != CastStep::all) {
      work.bytes -= bytes_of(x);
      work.launches -= 2;
    }
  }
  work.bytes -= step == CastStep::amax ? written_bytes(out) : 0.0;
  return work;
}

/// One pass for each orientation; before, under e4m3 scales, one for the amax of the tensor, or of
/// the rows of each orientation, and what makes scales of it.
OpWork fp4_work(const ConstView& x, const QuantizedTensor& out, CastStep step) {
  const int sides = !out.rowwise.codes.empty() && !out.columnwise.codes.empty() ? 2 : 1;
  const int passes = out.format().row_scaled ? sides : out.format().is_two_level() ? 1 : 0;
  if (step == CastStep::amax) {
    return {.bytes = bytes_of(x) * passes, .launches = 2 * passes};
  }
  const int before = step == CastStep::all ? passes : 0;
  return {.bytes = bytes_of(x) * (sides + before) + written_bytes(out),
          .launches = sides + passes + 2 * before};
}

}  // namespace

void amax(Stream stream, ConstView x, float* /*result*/, bool combine) {
  count(stream, bytes_of(x), "amax", x.count(), combine ? 1 : 2);
}

void quantize(Stream stream, ConstView x, const QuantizedTensor& out, float* /*amax*/,
              QuantizeStatistics* /*statistics*/, const CastOptions& options) {
  if (out.format().block != per::tensor) {
    const auto work = out.format().dtype == DType::e2m1 ? fp4_work : blocks_work;
    return count(stream, work(x, out, options.step));
  }
  const View& columnwise = out.columnwise.codes;
  count(stream, bytes_of(x) + bytes_of(out.rowwise.codes) + bytes_of(columnwise),
        columnwise.empty() ? "quantize" : "quantize transposed", x.count());
}

void quantize_current(Stream stream, ConstView x, const float* /*amax*/, float* /*scale_inv*/,
                      const QuantizedTensor& out, QuantizeStatistics* statistics) {
  meta::quantize(stream, x, out, nullptr, statistics, {});
}

void transpose_codes(Stream stream, ConstView x, View y) {
  count(stream, bytes_of(x) + bytes_of(y));
}

void dequantize(Stream stream, const Encoded& x, View y) {
  count(stream, bytes_of(x.codes) + bytes_of(x.scales) + bytes_of(y));
}

void compute_current_scale(Stream stream, const float* /*amax*/, const TensorFormat& /*format*/,
                           float* /*scale*/, float* /*scale_inv*/) {
  count(stream, 3 * sizeof(float));
}

void propagate_non_finite(Stream stream, ConstView amax, double* /*accumulator*/) {
  count(stream, bytes_of(amax));
}

void update_delayed_scaling(Stream stream, const DelayedScalingState& state,
                            const DelayedScaling& rule) {
  const int64_t window = rule.algorithm == AmaxAlgorithm::max ? state.history_length : 1;
  // amax (read, reset), cursor and scale (read, written), scale_inv, format_max, the window, and
  // updates_left (read, written).
  const int64_t words = 8 + window + (state.updates_left == nullptr ? 0 : 2);
  count(stream, static_cast<double>(state.slots * words) * sizeof(float));
}

void blockwise_part_amax(Stream stream, const MatrixPart& x, ScaleBlock /*block*/, View amax) {
  count(stream, {.bytes = bytes_of(x.values) + 2 * bytes_of(amax), .launches = 2});
}

void quantize_blockwise_part(Stream stream, const BlockwisePartCast& call) {
  count(stream, bytes_of(call.x.values) + bytes_of(call.amax) + bytes_of(call.codes) +
                    bytes_of(call.rounded));
}

void find_block_scales(Stream stream, const BlockScaleSearch& call) {
  count(stream, bytes_of(call.amax) + bytes_of(call.scales));
}

}  // namespace fp8train::ops::meta
