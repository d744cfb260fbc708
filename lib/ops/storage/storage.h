#pragma once
// Reading and writing of tensors that are stored in a format of their own: gradients that
// accumulate in few bits, weights that are their own master, what crosses a wire. Sums are fp32 and
// rounded once. AdamW reads and writes such tensors itself (ops/optimizer/optimizer.h).

#include "device/stream.h"
#include "tensor/stored_tensor.h"

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
  StoredTensor to;                       ///< nearest-even
  bool add = false;                      ///< to what `to` holds, in fp32
  const AutoScale* automatic = nullptr;  ///< only of a tensor scale
  const int32_t* skip = nullptr;         ///< device memory; nothing changes if it is not 0
};

/// Stores x, or with `add` the sum of x and what `to` holds, rounded once. A value that is not
/// finite is stored as NaN, so that a norm learns of it; scales then stay as they were.
void store(Stream stream, const Store& call);

/// y = the decoded values of x; y: fp32, bf16 or fp16.
void read_stored(Stream stream, const StoredTensor& x, View y);

/// The mu of gradients (FP8-LM, arXiv 2310.18313, section 2.2): the factor is halved if more than
/// 1e-5 of the codes, and at least two, have the largest magnitude, else it grows by 2^(1/1000). It
/// stays between 2^-16 and 2^16. Nothing changes if *skip (device memory) is not 0. codes: e4m3 or
/// e5m2.
void update_auto_scale(Stream stream, ConstView codes, AutoScale* automatic, const int32_t* skip);

/// Updates the controllers of `count` tensors whose codes were counted on several ranks
/// (count_largest()): the counters of of_ranks [ranks, count] are added. Those of scales [count]
/// are 0 afterwards. All of it is device memory.
void update_auto_scales(Stream stream, const AutoScale* of_ranks, int64_t ranks, AutoScale* scales,
                        int64_t count, const int32_t* skip);

/// The stored input of an operation that is not a GEMM, for backward: e4m3 codes with a bf16
/// scale for each group of 16 consecutive elements (COAT, arXiv 2410.19313).
struct CompressedView {
  View codes;      ///< e4m3
  View scale_inv;  ///< bf16 [ceil(count / 16)]: factors of the codes, amax / 448
};

constexpr int64_t kCompressedGroup = 16;

/// codes = cast(x / scale_inv), nearest-even; scale_inv = bf16(amax / 448), 1 for zeros. A group
/// with a value that is not finite has NaN for its scale. x: fp32, bf16 or fp16.
void compress(Stream stream, ConstView x, const CompressedView& out);

/// y = codes * scale_inv; y: fp32, bf16 or fp16.
void decompress(Stream stream, const CompressedView& x, View y);

}  // namespace fp8train::ops
