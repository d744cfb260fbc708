#pragma once
// Ranks that share sequences swap rows for heads around attention (DeepSpeed-Ulysses, arXiv
// 2309.14509): outside of it each has consecutive positions of every sequence, inside all positions
// and some of the heads.

#include <cstdint>
#include <span>

#include "nn/context.h"

namespace fp8train {

/// rows: [B * T / ranks, W], this rank's positions. heads: [B * T, W / ranks], all positions, its
/// part of each of the `pieces`, which add up to W: the heads of q, of k and of v.
void rows_to_heads(const StepContext& context, const View& rows, const View& heads, int64_t batch,
                   std::span<const int64_t> pieces);
/// The inverse.
void heads_to_rows(const StepContext& context, const View& heads, const View& rows, int64_t batch,
                   std::span<const int64_t> pieces);

}  // namespace fp8train
