#pragma once
// The cast with one scale per tensor, by tiles of 128 x 128, of values that are stored or that are
// made on the spot: a Source gives eight of them at a time, rounded to their type. One kernel
// writes from them what is wanted of: the values, codes, transposed codes, amax, statistics. Maxima
// and counts are integers, so that no order of blocks changes them. Only for .cu files.

#include "ops/cuda/code_tile.h"

namespace fp8train::ops::cuda {

/// A scale that every block finds from an amax, and the first of them writes.
struct CurrentScale {
  const float* amax = nullptr;  ///< null: the scale is there already
  float format_max = 0.0F, amax_epsilon = 0.0F;
  bool pow2 = false;
  float* scale = nullptr;
  float* scale_inv = nullptr;
};

/// The scalars of a cast. Null: not wanted.
struct CastCall {
  const float* scale;
  float* scale_inv;
  float* amax;
  QuantizeStatistics* statistics;
  CurrentScale current = {};
};

__device__ __forceinline__ void keep_reciprocal(const CastCall& call, float scale) {
  if (call.scale_inv != nullptr && blockIdx.x == 0 && threadIdx.x == 0) {
    *call.scale_inv = reciprocal(scale);
  }
}

/// The scale of a cast; the first thread of the grid writes what is wanted of it.
__device__ __forceinline__ float scale_of_cast(const CastCall& call) {
  float scale = call.scale == nullptr ? 1.0F : *call.scale;
  if (call.current.amax != nullptr) {
    const CurrentScale& current = call.current;
    scale = current_scale(*current.amax, current.format_max, current.amax_epsilon, current.pow2,
                          kMaxF32);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      *current.scale = scale;
      *current.scale_inv = reciprocal(scale);
    }
  }
  keep_reciprocal(call, scale);
  return scale;
}

template <bool Counted, typename X>
__device__ __forceinline__ void finish_cast(const CastCall& call, const Peak<X>& peak,
                                            const Tally& tally, uint32_t* shared) {
  if (call.amax != nullptr) {
    raise_amax(call.amax, peak.value(), shared);
  }
  if (Counted && call.statistics != nullptr) {
    add_to_statistics(call.statistics, tally, shared);
  }
}

/// Eight values as X, those from `available` on zero.
template <typename X>
__device__ __forceinline__ Octet<X> octet_of(const float (&values)[kOctet], int64_t available) {
  Octet<X> octet;
#pragma unroll
  for (int pair = 0; pair < kOctet / 2; ++pair) {
    const float low = 2 * pair < available ? values[2 * pair] : 0.0F;
    const float high = 2 * pair + 1 < available ? values[2 * pair + 1] : 0.0F;
    if constexpr (sizeof(X) == 4) {
      octet.words[2 * pair] = bits_of(low);
      octet.words[2 * pair + 1] = bits_of(high);
    } else {
      octet.words[pair] = narrow_pair<X>(low, high);
    }
  }
  return octet;
}

template <typename X>
__device__ __forceinline__ void octet_values(const Octet<X>& octet, float (&values)[kOctet]) {
#pragma unroll
  for (int pair = 0; pair < kOctet / 2; ++pair) {
    octet.pair(pair, values[2 * pair], values[2 * pair + 1]);
  }
}

/// The first `available` of an octet. Packed: as for load_octet.
template <bool Packed, typename X>
__device__ __forceinline__ void store_octet(X* to, const Octet<X>& octet, int64_t available) {
  if constexpr (Packed) {
    if (available > 0) {
#pragma unroll
      for (int i = 0; i < Octet<X>::kWords / 4; ++i) {
        const uint32_t* from = octet.words + i * 4;
        store_pack(reinterpret_cast<uint32_t*>(to) + i * 4,
                   Words{{from[0], from[1], from[2], from[3]}});
      }
    }
  } else {
    using Bits = std::conditional_t<sizeof(X) == 4, uint32_t, uint16_t>;
    for (int i = 0; i < kOctet; ++i) {
      if (i < available) {
        const uint32_t word = octet.words[i * Octet<X>::kWords / kOctet];
        to[i] =
            __builtin_bit_cast(X, static_cast<Bits>(sizeof(X) == 4 ? word : word >> i % 2 * 16));
      }
    }
  }
}

/// Where a matrix [rows, parts * width] goes. Tiles lie within a part; the same tile of all parts
/// is made by one block, one part after the other, so that what they read in common is at hand.
struct CastTarget {
  int64_t rows, width;
  void* y;              ///< the values themselves; may be null
  uint8_t* codes;       ///< may be null
  uint8_t* transposed;  ///< [parts * width, rows]; may be null
  bool transposed_aligned;
};

/// Tile of one part: values, codes, and what was seen of them.
template <bool Packed, bool Counted, typename Code, typename Source>
__device__ __forceinline__ void cast_tile(const Source& source, const CastTarget& target,
                                          int64_t tile_row, int64_t tile_column, int part,
                                          float scale, uint32_t* tile,
                                          Peak<typename Source::Value>& peak, Tally& tally) {
  using X = typename Source::Value;
  const int64_t row = tile_row + threadIdx.x / kTileGroups * kOctet;
  const int64_t column = tile_column + threadIdx.x % kTileGroups * kOctet;
  const int64_t left = target.width - column;
  const int64_t stride = target.width * Source::kParts;
  const int64_t first = row * stride + part * target.width + column;
  const auto available = [&](int i) { return row + i < target.rows ? left : 0; };
  Octet<X> octets[kOctet];
#pragma unroll
  for (int i = 0; i < kOctet; ++i) {
    octets[i] = source.template octet<Packed>(part, row + i, column, available(i));
  }
#pragma unroll
  for (int i = 0; i < kOctet; ++i) {
    peak.add(octets[i]);
    if (target.y != nullptr) {
      store_octet<Packed>(static_cast<X*>(target.y) + first + i * stride, octets[i], available(i));
    }
  }
  if (target.codes == nullptr && target.transposed == nullptr) {
    return;
  }
  CodeWords codes[kOctet];
#pragma unroll
  for (int i = 0; i < kOctet; ++i) {
    codes[i] = encode_octet<Code, Counted>(
        octets[i], [scale](int /*column*/) { return scale; }, tally);
    if (target.codes != nullptr) {
      store_codes<Packed>(target.codes + first + i * stride, codes[i], available(i));
    }
  }
  if (target.transposed == nullptr) {
    return;
  }
  put_transposed(codes, tile);
  __syncthreads();
  write_transposed(tile, target.transposed + part * target.width * target.rows, tile_row,
                   tile_column, target.rows, target.width, target.transposed_aligned);
  __syncthreads();
}

/// Packed: what the source reads and y are aligned to 16 bytes, codes to 8, and the width is a
/// multiple of eight.
template <bool Packed, bool Counted, typename Code, typename Source>
__global__ void __launch_bounds__(kTileThreads, (Source::template blocks<Packed, Counted>()))
    cast_tiles_kernel(Source source, CastTarget target, CastCall call) {
  FP8TRAIN_SHARED_ARRAY(uint32_t, shared, kTileThreads / kWarp);
  FP8TRAIN_SHARED_ARRAY(Words, tile, kTileWords / 4);
  const float scale = scale_of_cast(call);
  const int64_t tiles_across = (target.width + kTile - 1) / kTile;
  const int64_t tiles = tiles_across * ((target.rows + kTile - 1) / kTile);
  Peak<typename Source::Value> peak;
  Tally tally;
  for (int64_t index = blockIdx.x; index < tiles; index += gridDim.x) {
#pragma unroll 1
    for (int part = 0; part < Source::kParts; ++part) {
      cast_tile<Packed, Counted, Code>(source, target, index / tiles_across * kTile,
                                       index % tiles_across * kTile, part, scale,
                                       reinterpret_cast<uint32_t*>(tile), peak, tally);
    }
  }
  finish_cast<Counted>(call, peak, tally, shared);
}

/// Host: casts what the source gives, [rows, kParts * width], as `sink` says, and writes it to `y`
/// unless that is null. `aligned`: the source can be read in packs. `current`: the scale follows.
template <typename Source>
void cast_tiles(const Stream& stream, const Source& source, int64_t rows, int64_t width, void* y,
                const QuantizeSink& sink, bool aligned, const CurrentScale& current = {}) {
  const QuantizedView& out = sink.out;
  if (sink.statistics != nullptr) {
    reset_statistics(stream, sink.statistics, rows * width * Source::kParts);
  }
  const CastTarget target = {
      .rows = rows,
      .width = width,
      .y = y,
      .codes = out.codes.as<uint8_t>(),
      .transposed = out.codes_transposed.as<uint8_t>(),
      .transposed_aligned = transposed_is_aligned(out.codes_transposed.data, rows)};
  const bool there = !out.empty() && current.amax == nullptr;
  const CastCall call = {there ? out.scale : nullptr, out.scale_inv, sink.amax, sink.statistics,
                         current};
  const bool packed =
      aligned && width % kOctet == 0 && is_aligned(y) && is_aligned(target.codes, kOctet);
  const int64_t tiles = ceil_div(rows, kTile) * ceil_div(width, kTile);
  const LaunchShape shape = {blocks_for(stream, tiles, 1), kTileThreads};
  with_fp8_type(out.empty() ? DType::e4m3 : out.format.dtype, [&](auto tag) {
    using Code = typename decltype(tag)::Type;
    if (!packed) {
      launch(stream, shape, cast_tiles_kernel<false, true, Code, Source>, source, target, call);
    } else if (sink.statistics != nullptr) {
      launch(stream, shape, cast_tiles_kernel<true, true, Code, Source>, source, target, call);
    } else {
      launch(stream, shape, cast_tiles_kernel<true, false, Code, Source>, source, target, call);
    }
  });
}

/// Values that lie in memory.
template <typename X>
struct StoredSource {
  using Value = X;
  static constexpr int kParts = 1;
  const X* __restrict__ x;
  int64_t width;

  template <bool Packed, bool Counted>
  static constexpr int blocks() {
    return kTileBlocks<Packed, Counted, X>;
  }
  template <bool Packed>
  __device__ __forceinline__ Octet<X> octet(int /*part*/, int64_t row, int64_t column,
                                            int64_t available) const {
    return load_octet<Packed>(x + row * width + column, available);
  }
};

/// Blocks that a multiprocessor is to hold where values are made on the spot, which takes more
/// registers than loading them.
template <bool Packed, bool Counted, typename X>
constexpr int kMadeTileBlocks = Packed && !Counted && sizeof(X) == 2 ? 2 : 1;

}  // namespace fp8train::ops::cuda
