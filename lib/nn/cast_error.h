#pragma once
// Measures the error of a cast, for the statistics of a step.

#include "nn/context.h"
#include "precision/scaling_state.h"
#include "tensor/view.h"

namespace fp8train {

/// Fills the slot's CastSample: max |x|, and the energies of x and of what a cast of x with the
/// slot's scale (or with a scale for each of its blocks along the rows of x) takes from it. The
/// cast is made once more, in scratch and a few million elements at a time, whoever has made the
/// one that is used and in which orientation: nearest-even casts of the same values with the same
/// scale have the same codes. Of a stochastic format the sample is rounded to nearest, and a scale
/// of the tensor above those of blocks is that of the part that is cast at once. Sums are in fp64
/// in a fixed order.
void sample_cast(const StepContext& context, ConstView x, const ScalingSlot& slot);

/// Samples the largest magnitude alone, where the codes lie only along the columns of x, in blocks
/// that differ from those along its rows.
void sample_amax(const StepContext& context, ConstView x, const ScalingSlot& slot);

/// Does as sample_cast() for an x that has been cast. rounded: fp32, the decoded codes;
/// overwritten.
void sample_rounded(const StepContext& context, ConstView x, View rounded, const ScalingSlot& slot);

}  // namespace fp8train
