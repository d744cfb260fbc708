#pragma once
// Reading and writing of tensors that are stored in a format of their own: gradients that
// accumulate in few bits, weights that are their own master, inputs saved for backward, what
// crosses a wire. Sums are fp32 and rounded once. AdamW reads and writes such tensors itself
// (ops/optimizer/optimizer.h).

#include "device/stream.h"
#include "tensor/element_map.h"
#include "tensor/encoded.h"

namespace fp8train::ops {

/// The controller of one tensor's automatic scaling; device memory. Its format's current scale is
/// multiplied by `factor`, rounded down to a power of two.
struct AutoScale {
  float factor = 1.0F;
  uint32_t at_maximum = 0;  ///< counter of an update; 0 between updates
  int64_t elements = 0;     ///< elements of the tensor
};

/// The arguments of store().
struct Store {
  ConstView x;                           ///< fp32, bf16 or fp16
  Encoded to;                            ///< nearest-even; also in saved_groups()
  bool add = false;                      ///< to what `to` holds, in fp32; not in saved_groups()
  const AutoScale* automatic = nullptr;  ///< only of a tensor scale
  const int32_t* skip = nullptr;         ///< device memory; nothing changes if it is not 0
  CastStep step = CastStep::all;  ///< a step only with a scale of the tensor, next to which it is
};

/// Stores x, or with `add` the sum of x and what `to` holds, rounded once. A value that is not
/// finite is stored as NaN, so that a norm learns of it; scales then stay as they were, but for
/// those of saved_groups() and two_level_groups(), which become NaN.
void store(Stream stream, const Store& call);

/// y = the decoded values of x; y: fp32, bf16 or fp16.
void read_stored(Stream stream, const Encoded& x, View y);

/// Counts the codes of a tensor, or of a part of it, that have the largest magnitude: e4m3 or e5m2.
void count_at_maximum(Stream stream, ConstView codes, AutoScale* automatic);

/// Updates the controllers of `count` tensors whose codes were counted on one or more ranks: the
/// counters of of_ranks [ranks, count], which may be `scales`, are added. Those of scales [count]
/// are 0 afterwards. All of it is device memory. The mu of gradients (FP8-LM, arXiv 2310.18313,
/// section 2.2): the factor is halved if more than 1e-5 of the codes, and at least two, have the
/// largest magnitude, else it grows by 2^(1/1000). It stays between 2^-16 and 2^16, and as it is if
/// *skip is not 0.
void update_auto_scales(Stream stream, const AutoScale* of_ranks, int64_t ranks, AutoScale* scales,
                        int64_t count, const int32_t* skip);

}  // namespace fp8train::ops
