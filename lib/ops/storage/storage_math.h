#pragma once
// The arithmetic of ops/storage/storage.h in addition to the codecs: automatic scaling, and what
// stochastic rounding needs. For host and device.

#include "numeric/codec.h"
#include "numeric/rounding.h"
#include "ops/storage/storage.h"

namespace fp8train::ops {

/// A value that ops::store and then ops::read_stored have moved through a T without scales.
template <typename T>
FP8TRAIN_HD float as_stored(float value) {
  return decode(encode<T>(finite_or_nan(0.0F + value)));
}

/// Returns the factor of a current scale.
FP8TRAIN_HD float automatic_factor(const AutoScale* automatic) {
  return automatic == nullptr ? 1.0F : pow2_floor(automatic->factor);
}

/// The factor after a step in which `at_maximum` of `count` codes had the largest magnitude. It is
/// halved where these are more than 1e-5 of all (FP8-LM, arXiv 2310.18313, section 2.2) and at
/// least two. The second condition, which is not the source's, says something of tensors with fewer
/// than 100000 elements only: there one code is more than 1e-5 of all, and the element that the
/// scale follows from has the largest code by itself in log2(448 / 432) = 5 % of steps, whether
/// anything saturates or not.
FP8TRAIN_HD float next_automatic_factor(float factor, uint32_t at_maximum, int64_t count) {
  constexpr double kTooMany = 1e-5;
  constexpr float kGrowth = 1.00069339F;  // 2^(1/1000)
  constexpr float kLimit = 65536.0F;
  const bool saturates =
      at_maximum > 1 && static_cast<double>(at_maximum) > kTooMany * static_cast<double>(count);
  const float next = saturates ? factor * 0.5F : factor * kGrowth;
  const float above = next < 1.0F / kLimit ? 1.0F / kLimit : next;
  return above > kLimit ? kLimit : above;
}

/// Returns scale t of `count` after a step, with the counters of all ranks.
FP8TRAIN_HD AutoScale next_auto_scale(const AutoScale* of_ranks, int64_t ranks, int64_t count,
                                      int64_t t, AutoScale scale, bool skip) {
  uint32_t at_maximum = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    at_maximum += of_ranks[rank * count + t].at_maximum;
  }
  if (!skip) {
    scale.factor = next_automatic_factor(scale.factor, at_maximum, scale.elements);
  }
  scale.at_maximum = 0;
  return scale;
}

/// Whether the code has the largest finite magnitude.
template <typename Code>
FP8TRAIN_HD bool is_largest(Code code) {
  return (code.bits & 0x7FU) == FormatLayout<Code>::kMaxCode;
}

/// block_scale() of new values. One that was rounded down is raised for `stochastic` rounding,
/// since the block's largest element would be cut to 6 in every draw. Errors of fp32 raise none, so
/// that a block that is stored again does not change.
FP8TRAIN_HD e4m3 new_block_scale(float amax, float group_scale, bool floored, bool stochastic) {
  const e4m3 scale = block_scale(amax, group_scale, floored);
  const float least = amax * (group_scale * (1.0F / kMaxE2M1)) * (1.0F - 1.0F / (1 << 20));
  const bool raised = stochastic && scale.bits < 0x7E && decode(scale) < least;
  return e4m3{static_cast<uint8_t>(scale.bits + (raised ? 1 : 0))};
}

/// The random bits of one tensor in one step.
struct RoundingDraw {
  uint64_t seed = 0, step = 0, tensor = 0;
  int64_t first = 0;
  ElementMap elements = {};

  /// Returns the random bits of the elements 4 * block .. 4 * block + 3 of a call. Those of a part
  /// are four elements of the whole, too (ElementMap::by_fours).
  FP8TRAIN_HD PhiloxBlock block(int64_t block) const {
    const int64_t element = elements.element(first + 4 * block);
    return stochastic_block(seed, step, tensor, static_cast<uint64_t>(element) / 4);
  }
};

/// Returns the random bits of one role of a tensor in one step.
FP8TRAIN_HD RoundingDraw rounding_draw(const RoundingStream& stream, RoundingRole role,
                                       int64_t step) {
  return {stream.seed, static_cast<uint64_t>(step), stream.tensor * 4 + static_cast<uint64_t>(role),
          stream.first, stream.elements};
}

}  // namespace fp8train::ops
