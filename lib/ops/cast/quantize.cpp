#include "ops/cast/quantize.h"

#include "ops/cast/quantize_checks.h"
#include "ops/cast/scale_blocks.h"
#include "ops/dispatch/op_table.h"

namespace fp8train::ops {
namespace {

/// Checks a cast to e2m1: it needs the scales above those of blocks, and random bits.
void check_fp4(const QuantizedTensor& out, const CastOptions& options) {
  const Encoded& either = out.either();
  const TensorFormat& format = either.format;
  check(!format.is_two_level() || format.row_scaled ||
            (either.cast_scales != nullptr && either.tensor_scale != nullptr),
        "quantize: no scales of the tensor");
  check(format.row_scaled || out.rowwise.codes.empty() || out.columnwise.codes.empty() ||
            !format.hadamard,
        "quantize: transformed values have a scale of the tensor for each orientation");
  check(format.rounding == Rounding::nearest_even || options.pass != nullptr,
        "quantize: no random bits");
}

void check_block_cast(const ConstView& x, const QuantizedTensor& out, const CastOptions& options) {
  const TensorFormat& format = out.format();
  check(format.policy == ScalePolicy::current, "quantize: blocks have current scaling");
  check(options.step == CastStep::all || format.block == per::row || format.is_two_level(),
        "quantize: steps are of scales of rows or of two levels");
  if (format.dtype == DType::e2m1) {
    check_fp4(out, options);
  } else {
    check(format.rounding == Rounding::nearest_even, "quantize: nearest-even rounding expected");
  }
  const int64_t rows = x.shape.rows();
  const int64_t columns = x.shape.back();
  for (const Encoded* part : {&out.rowwise, &out.columnwise}) {
    if (part->codes.empty()) {
      continue;
    }
    check_blockwise(*part, part == &out.rowwise ? Shape{rows, columns} : Shape{columns, rows});
    check(part->cast_scales != nullptr || format.block != per::row, "quantize: no scale");
    check(part->row_scales != nullptr || !format.row_scaled, "quantize: no scales of rows");
  }
}

}  // namespace

void amax(Stream stream, ConstView x, float* result, bool combine) {
  check(is_float_type(x.dtype), "amax: x must be fp32, bf16 or fp16");
  check(result != nullptr, "amax: no output for the result");
  dispatch<&OpTable::amax>(stream, x, result, combine);
}

void quantize(Stream stream, ConstView x, const QuantizedTensor& out, float* amax,
              QuantizeStatistics* statistics, const CastOptions& options) {
  check(is_float_type(x.dtype), "quantize: x must be fp32, bf16 or fp16");
  check(!out.empty() || x.count() == 0, "quantize: no output for the codes");
  const bool by_tensor = out.format().block == per::tensor;
  by_tensor ? check_cast(x, out) : check_block_cast(x, out, options);
  dispatch_as<&OpTable::quantize>(by_tensor ? "quantize" : "quantize_blockwise", stream, x, out,
                                  amax, statistics, options);
}

void quantize_current(Stream stream, ConstView x, const float* amax, float* scale_inv,
                      const QuantizedTensor& out, QuantizeStatistics* statistics) {
  check(is_float_type(x.dtype), "quantize_current: x must be fp32, bf16 or fp16");
  check(!out.empty() || x.count() == 0, "quantize_current: no output for the codes");
  check(amax != nullptr && scale_inv != nullptr, "quantize_current: missing scalar");
  check(dtype_of(out.format().scale_type) == DType::f32,
        "quantize_current: fp32 or pow2 scale expected");
  check_cast(x, out);
  dispatch<&OpTable::quantize_current>(stream, x, amax, scale_inv, out, statistics);
}

void transpose_codes(Stream stream, ConstView x, View y) {
  check(facts_of(x.dtype).bits == 8 && is_code_type(x.dtype) && x.dtype == y.dtype,
        "transpose_codes: codes of one type of 8 bits expected");
  check(y.shape == Shape{x.shape.back(), x.shape.rows()}, "transpose_codes: y is [columns, rows]");
  dispatch<&OpTable::transpose_codes>(stream, x, y);
}

void dequantize(Stream stream, const Encoded& x, View y) {
  const View& codes = x.codes;
  check(is_code_type(codes.dtype), "dequantize: codes must be e4m3, e5m2, e2m1 or int8");
  check(is_float_type(y.dtype), "dequantize: y must be fp32, bf16 or fp16");
  check(codes.count() == y.count(), "dequantize: counts differ");
  const bool by_tensor = x.format.block == per::tensor;
  if (by_tensor) {
    check(x.tensor_scale != nullptr, "dequantize: no scale");
  } else {
    check_blockwise(x, {codes.shape.rows(), codes.shape.back()});
  }
  dispatch_as<&OpTable::dequantize>(by_tensor ? "dequantize" : "dequantize_blockwise", stream, x,
                                    y);
}

void compute_current_scale(Stream stream, const float* amax, const TensorFormat& format,
                           float* scale, float* scale_inv) {
  check(amax != nullptr && scale != nullptr && scale_inv != nullptr,
        "compute_current_scale: missing scalar");
  check(dtype_of(format.scale_type) == DType::f32,
        "compute_current_scale: fp32 or pow2 scale expected");
  dispatch<&OpTable::compute_current_scale>(stream, amax, format, scale, scale_inv);
}

void propagate_non_finite(Stream stream, ConstView amax, double* accumulator) {
  check(amax.dtype == DType::f32 && accumulator != nullptr,
        "propagate_non_finite: fp32 amax values and an accumulator expected");
  dispatch<&OpTable::propagate_non_finite>(stream, amax, accumulator);
}

void update_delayed_scaling(Stream stream, const DelayedScalingState& state,
                            const DelayedScaling& rule) {
  check(state.slots >= 0 && state.history_length >= 1,
        "update_delayed_scaling: a history holds at least one value");
  dispatch<&OpTable::update_delayed_scaling>(stream, state, rule);
}

}  // namespace fp8train::ops
