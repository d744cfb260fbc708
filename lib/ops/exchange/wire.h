#pragma once
// Gradients on their way between ranks: packed into packets that are copied as bytes, and summed in
// fp32 in rank order. One rounding per contribution; no amax of others is needed. Ours; the two
// shots are those of FlashCommunication (arXiv 2412.04964).
//
// The packet of a chunk: its codes, then a scale for each of the format's groups of elements (fp32;
// one byte, the biased exponent, for powers of two), padded to 16 bytes. codes = cast(value *
// scale) with the scales of an Encoded of the same format. The last group of a chunk may be
// smaller. A group with a value that is not finite has NaN for its scale: all ranks read NaN.
// two_level_groups(): two codes in a byte, then the GroupScales of each group (numeric/codec.h).

#include "device/stream.h"
#include "tensor/encoded.h"

namespace fp8train::ops {

/// Whether tensors are exchanged in this format: types without scales (fp32, bf16), or codes (e4m3,
/// e5m2, int8) with a current scale (fp32 or pow2) for each group of kWireGroups elements, rounded
/// to nearest; or two_level_groups(). The lists are in wire_formats.h.
bool is_wire_format(const TensorFormat& format);

/// Bytes of the packet of a chunk of `count` elements.
int64_t wire_bytes(const TensorFormat& format, int64_t count);

/// The position of chunks in a flat tensor: chunk c is its elements first + c * stride .., as far
/// as it has them. Multiples of kRangeAlignment.
struct ChunkRange {
  int64_t first = 0;
  int64_t stride = 0;  ///< at least a chunk; 0: chunks lie one after another
};

/// The arguments of pack_wire().
struct PackWire {
  Encoded x;  ///< fp32, bf16 or fp16; or in the wire's own format, which is copied
  TensorFormat format;
  int64_t chunk = 0;  ///< elements of a chunk: a multiple of kRangeAlignment
  int64_t chunks = 1;
  ChunkRange range;  ///< position in x; zeros beyond its end. By default the chunks hold all of x.
  /// The packet of chunk c is at position c % inner * (chunks / inner) + c / inner.
  int64_t inner = 1;
  void* packets = nullptr;  ///< chunks * wire_bytes(format, chunk), 16-byte aligned
};
/// Packs the chunks of x. Throws InternalError for a format that no wire has.
void pack_wire(Stream stream, const PackWire& call);

/// The arguments of sum_wire().
struct SumWire {
  const void* packets = nullptr;  ///< each contribution in order, `chunks` packets each
  TensorFormat format;
  int64_t contributions = 1;
  int64_t chunk = 0, chunks = 1;
  /// The contribution that is read from `exact` (of a type without scales) instead; -1: none.
  int64_t exact_index = -1;
  ConstView exact;  ///< as many elements as y
  float factor = 1.0F;
  View y;            ///< of a type without scales; may be `exact`
  ChunkRange range;  ///< position in y. By default the chunks hold all of y.
};
/// y = factor * (x_0 + x_1 + ...), in fp32 and in order, rounded once to y's type.
void sum_wire(Stream stream, const SumWire& call);

/// The arguments of unpack_wire().
struct UnpackWire {
  const void* packets = nullptr;
  int64_t chunk = 0, chunks = 1;
  Encoded y;         ///< codes with a scale for each group
  ChunkRange range;  ///< position in y. By default the chunks hold all of y.
};
/// y = the codes and scales of the packets, in y's own format.
void unpack_wire(Stream stream, const UnpackWire& call);

enum class Combine : uint8_t {
  sum,    ///< (((0 + 1) + 2) + 3) ..
  pairs,  ///< ((0 + 1) + (2 + 3)) .., of at most kMaxPaired parts (ops/support/in_pairs.h)
  max,    ///< the largest magnitude, NaN being larger than all
};

/// y[i] = parts[0, i] + parts[1, i] + ..., or the largest of them. parts: [ranks, n], y: [n]; fp32
/// or fp64, the same of both. `pairs` adds fp32 or bf16 parts in fp32, and writes fp32, bf16 or
/// fp16.
void combine_ranks(Stream stream, ConstView parts, Combine how, View y);

}  // namespace fp8train::ops
