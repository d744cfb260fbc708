#pragma once
// The steps of delayed scaling for one slot, for host and device.

#include <cstdint>

#include "base/host_device.h"
#include "numeric/bits.h"
#include "numeric/scale.h"
#include "ops/cast/quantize.h"

namespace fp8train::ops {

/// Larger magnitude of two non-negative values, NaN being larger than all: the order of bit
/// patterns. A NaN result is the quiet NaN.
FP8TRAIN_HD float max_magnitude(float a, float b) {
  const uint32_t a_bits = bits_of(a) & 0x7FFFFFFFU;
  const uint32_t b_bits = bits_of(b) & 0x7FFFFFFFU;
  const uint32_t larger = a_bits > b_bits ? a_bits : b_bits;
  return float_of(larger > 0x7F800000U ? 0x7FC00000U : larger);
}

/// Moves the slot's amax into its ring of the last `history_length` values, whose newest value is
/// at row cursor[slot]. The ring holds rows 1.. of a history that is shifted by one row per step
/// (as TransformerEngine's is). False when nothing is to be done: the amax is 0 or not finite, and
/// does not enter as 0.
FP8TRAIN_HD bool push_amax(const DelayedScalingState& state, int64_t slot) {
  const float amax = state.amax[slot];
  state.amax[slot] = 0.0F;
  const bool finite = is_finite(amax);
  const bool usable = amax > 0.0F && finite;
  if (state.updates_left != nullptr) {
    int32_t& left = state.updates_left[slot];
    const int32_t fewer = left > 0 ? left - 1 : 0;
    left = finite ? fewer : static_cast<int32_t>(state.history_length);
  }
  if (!usable && !state.per_step) {
    return false;
  }
  const int64_t next = int64_t{state.cursor[slot]} + 1;
  const int64_t row = next < state.history_length ? next : 0;
  state.cursor[slot] = static_cast<int32_t>(row);
  state.history[row * state.slots + slot] = usable ? amax : 0.0F;
  return true;
}

/// Returns the newest amax of the slot.
FP8TRAIN_HD float newest_amax(const DelayedScalingState& state, int64_t slot) {
  return state.history[state.cursor[slot] * state.slots + slot];
}

/// The slot's scale from `window`, the amax that AmaxAlgorithm chose.
FP8TRAIN_HD void rescale_slot(const DelayedScalingState& state, int64_t slot, float window,
                              int margin) {
  const float exact = delayed_scale(window, state.scale[slot], state.format_max[slot], margin);
  const float scale = state.pow2 ? pow2_floor(exact) : exact;
  state.scale[slot] = scale;
  state.scale_inv[slot] = reciprocal(scale);
}

}  // namespace fp8train::ops
