#pragma once
// Casting to and from scaled formats, and the upkeep of scales. Scales, amax and statistics live in
// device memory and are never read by the host inside a step. Formulas and order of updates follow
// their source (TransformerEngine, common/recipe/recipe_common.cuh and delayed_scaling.cu).

#include <cstdint>

#include "device/stream.h"
#include "tensor/element_map.h"
#include "tensor/encoded.h"
#include "tensor/view.h"

namespace fp8train::ops {

/// The outcome of the cast of one tensor's values; device memory, sampled at the
/// logging interval.
struct QuantizeStatistics {
  uint64_t count;
  uint64_t saturated;  ///< values that were clipped (see saturation_threshold), infinities included
  uint64_t underflow;  ///< non-zero values that became zero
};

/// How an operation casts its result y to FP8 while it has it at hand, without a second read of
/// memory: as quantize would cast y after it has been rounded to y's type, with the same bits. The
/// operation's y may then be empty (its type and shape still say what is meant): it is not written.
struct QuantizeSink {
  QuantizedTensor out;    ///< empty: no codes, only the amax
  float* amax = nullptr;  ///< nullable; max |y| is combined into it, NaN-propagating
  QuantizeStatistics* statistics = nullptr;  ///< nullable; overwritten. Only next to codes.

  bool empty() const { return out.empty() && amax == nullptr; }
};

/// Which random bits a stochastic cast draws: those of numeric/rounding.h for (seed, *pass, tensor,
/// row * width + column), the codes' row and column, and the width rounded up to a multiple of 16.
/// And which step of a cast is made: with scales of rows, or under e4m3 scales that of the tensor.
/// The magnitudes of CastStep are in the `cast_scales` of each orientation, in `row_scales` where
/// rows are scaled, or in `tensor_scale`. One of the two steps combines `amax`: both are given it.
struct CastOptions {
  uint64_t seed = 0;
  const uint64_t* pass = nullptr;  ///< device memory: counts micro-batches over all ranks
  uint64_t tensor = 0;
  ExtentMap rows = {}, columns = {};  ///< of x, where it is a part of the matrix that draws
  CastStep step = CastStep::all;
};

/// *result = max |x|, propagating NaN; `combine`: and of what is there, which is not negative. x:
/// fp32, bf16 or fp16.
void amax(Stream stream, ConstView x, float* result, bool combine = false);

/// codes = saturating cast(x * scale), int8 to -127..127 and NaN to 0, which counts as underflow;
/// nearest-even. x is seen as a matrix [rows, last extent]; each orientation of `out` that has
/// codes is written. x: fp32, bf16 or fp16. `amax` (nullable): *amax = max |x| before the cast,
/// combined with max into what is there, which is not negative; NaN-propagating. `statistics`
/// (nullable): overwritten, with those of `rowwise`, or of `columnwise` if that is alone.
///
/// per::tensor: `cast_scales` of out.either() is read, its reciprocal goes to `tensor_scale`
/// (nullable), so that a tensor keeps the scale it was cast with. Codes: e4m3, e5m2 or, without
/// their transpose, int8.
///
/// Blocks (row, 1x128, 128x128 with ScaleType f32 or pow2; 1x32 and 32x32 with e8m0;
/// ScalePolicy::current): the scale of a block is found from the block itself in the same read;
/// each row of a 32x32 gets it. Blocks at an edge are as if padded with zeros. fp32 and pow2
/// scales: format_max / amax (not below the format's amax_epsilon), rounded down to a power of two
/// for pow2; 1 where the block's amax is 0 or not finite; the largest number of x's type where the
/// quotient overflows. e8m0: amax / format_max rounded up to a power of two is the reciprocal
/// scale; 0x00 for 0, 0xFE for infinity, 0xFF (all codes NaN) for NaN. A saturating cast hides an
/// infinity: `amax` tells. On cuda a cast that counts is slower. Codes: e4m3, e5m2 or, but for 1x32
/// and 32x32, int8.
///
/// Codes e2m1, for which alone rounding may be stochastic, by `options`: 1x32 and 32x32 with e8m0
/// (MXFP4) as above; 1x16 and 16x16 with e4m3 (NVFP4): numeric/scale.h's two_level and
/// four_over_six functions, of the amax of the tensor, or with `row_scaled` of each row of the
/// codes, for which x is read once more; the scales of the tensor, or of rows, are written. With
/// `hadamard`, for one orientation at a time unless row_scaled, all of it is of the transformed
/// values in x's type; those that do not fill a block of 16 stay as they are.
void quantize(Stream stream, ConstView x, const QuantizedTensor& out, float* amax,
              QuantizeStatistics* statistics, const CastOptions& options = {});

/// `cast_scales` of out.either() and *scale_inv from *amax as compute_current_scale() finds them
/// for its format, then quantize(). `scale_inv` may be its `tensor_scale`.
void quantize_current(Stream stream, ConstView x, const float* amax, float* scale_inv,
                      const QuantizedTensor& out, QuantizeStatistics* statistics);

/// y[c, r] = x[r, c]: what quantize() writes as columnwise codes, of codes that came without. x:
/// [rows, columns] of a type of 8 bits; y: [columns, rows], elsewhere.
void transpose_codes(Stream stream, ConstView x, View y);

/// y = codes * the scale of their block or of the tensor, in y's type (fp32, bf16 or fp16). x: one
/// orientation; y: like its codes. Scales in e4m3: codes times the scale of their block times the
/// row's or the tensor's, or 1 where both are null; a Hadamard transform is not taken back.
void dequantize(Stream stream, const Encoded& x, View y);

/// *scale, *scale_inv from *amax by the current-scaling rule for `format` (fp32 or pow2; an amax
/// below the format's amax_epsilon counts as that; zero or non-finite amax give 1).
void compute_current_scale(Stream stream, const float* amax, const TensorFormat& format,
                           float* scale, float* scale_inv);

/// *accumulator = NaN when any of `amax` (fp32, magnitudes) is not finite; else it keeps its value.
/// A saturating cast turns an infinity into a finite code: this is how a step still learns of it,
/// through the norm of its gradients.
void propagate_non_finite(Stream stream, ConstView amax, double* accumulator);

/// The delayed-scaling state of a group of tensors ("slots"); all pointers are device memory.
struct DelayedScalingState {
  int64_t slots;
  int64_t history_length;
  float* amax;       ///< [slots]: this step's amax; reset to 0 by the update
  float* history;    ///< [history_length, slots], zeros at first; the newest value of slot s is at
                     ///< row cursor[s]
  int32_t* cursor;   ///< [slots]
  float* scale;      ///< [slots], ones at first
  float* scale_inv;  ///< [slots]
  const float* format_max;  ///< [slots]
  bool pow2 = false;        ///< scales are rounded down to powers of two
  bool per_step = false;    ///< WindowUnit::step
  /// Nullable, [slots]: updates until the first window ends, history_length at first.
  int32_t* updates_left = nullptr;
};

/// Moves each slot's amax into its history and recomputes its scale from the window. A slot whose
/// amax is 0 (not used since the last update) keeps history and scale; a non-finite amax never
/// enters the history and keeps the scale too. With `per_step` both enter as 0, and the scale
/// follows from the rest of the window unless that is all 0 (MS-AMP, msamp/optim/optimizer.py
/// LBOptimizer._update_scaling_factors, whose rolled history has the upcoming step's 0 in front of
/// these values). An amax that is not finite begins the first window again, whose updates are
/// counted in `updates_left` (the same function, amax_counters).
void update_delayed_scaling(Stream stream, const DelayedScalingState& state,
                            const DelayedScaling& rule);

}  // namespace fp8train::ops
