#pragma once
// Gradients that cross the wire as the codes of a scale that all ranks share, one for each tensor,
// and are summed as codes: each partial sum is rounded to fp16 and then to the codes' format, as an
// FP8 sum within the network does (MS-AMP, nn/distributed.py; msccl-executor-nccl,
// reduce_kernel.h), but in rank order. The error of the sum is part of the method; that of
// ops/exchange/wire.h is smaller.
//
// A bucket is flat; each of its tensors starts at a multiple of kRangeAlignment elements.

#include "device/stream.h"
#include "ops/exchange/wire.h"
#include "tensor/tensor_format.h"
#include "tensor/view.h"

namespace fp8train::ops {

/// Gradients as they are before the exchange, and after it.
struct SharedBucket {
  View values;           ///< fp32, bf16, e4m3 or e5m2
  View code_scales;      ///< scales of codes: fp32 [tensors, 2], the scale and 0; else empty
  View tensor_of_group;  ///< int32 [ceil(count / kRangeAlignment)]: whose elements each span is
};

/// amax[t] = the largest magnitude of tensor t; NaN is larger than all. amax: fp32 [tensors]
void shared_amax(Stream stream, const SharedBucket& bucket, View amax);

/// scales[t] = format_max / amax * pre_scale with the largest amax of all ranks, the quotient
/// rounded down to a power of two where the format says so; NaN where that amax is not finite,
/// pre_scale where it is 0. amax: fp32 [ranks, tensors]. format: of the codes. `automatic`: i64
/// [tensors], the address of each tensor's AutoScale (ops/storage/storage.h), whose factor times
/// pre_scale, rounded down to a power of two, replaces pre_scale (the mu of FP8-LM);
/// empty: none.
void shared_scales(Stream stream, ConstView amax, const TensorFormat& format, float pre_scale,
                   View scales, ConstView automatic = {});

/// codes = cast(value * scale), zeros beyond the bucket. codes: e4m3 or e5m2 [chunks, n], n a
/// multiple of 128, whose elements in the bucket are `range`.
void pack_shared(Stream stream, const SharedBucket& bucket, ConstView scales, View codes,
                 const ChunkRange& range = {});

/// y = ((c_0 + c_1) + c_2) ..., rounded at each addition. codes: [ranks, n], y: [n], may be its
/// first row.
void sum_shared(Stream stream, ConstView codes, View y);

/// Adds to the counters of automatic scales how many codes have the largest magnitude. codes: [n];
/// tensor_of_group: from the group of the first code on; automatic: as for shared_scales().
void count_largest(Stream stream, ConstView codes, ConstView tensor_of_group, ConstView automatic);

/// The values of summed codes [chunks, n] at their positions in `to`: factor * code / scale. Codes
/// are stored as they are, with scales divided by `factor` where there is memory for them
/// (code_scales). `to`: a bucket, or any part of one that starts at a whole group.
void read_shared(Stream stream, ConstView codes, ConstView scales, float factor,
                 const SharedBucket& to, const ChunkRange& range = {});

}  // namespace fp8train::ops
