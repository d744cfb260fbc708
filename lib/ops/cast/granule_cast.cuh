#pragma once
// What the kernels that cast with one scale for each granule share. Only for .cu files.

#include "base/math.h"
#include "ops/cast/code_tile.cuh"
#include "ops/cast/granules.h"

namespace fp8train::ops::cuda {

constexpr int kTileWarps = kTileThreads / kWarp;

/// One cast of a matrix [rows, columns]. An orientation without codes is not wanted.
struct GranuleCast {
  int64_t rows, columns;
  DType code_type;
  uint8_t* codes;
  uint8_t* transposed;  ///< [columns, rows]
  bool transposed_aligned;
  GranuleScales rowwise, columnwise;
  GranuleRule rule;
  float* amax;                     ///< of the whole matrix, raised; may be null
  QuantizeStatistics* statistics;  ///< may be null
};

struct TilePlace {
  int64_t row, column;  ///< of the tile
};

__device__ __forceinline__ TilePlace tile_place(const GranuleCast& cast, int64_t index) {
  const int64_t across = ceil_div(cast.columns, kTile);
  return {index / across * kTile, index % across * kTile};
}
__device__ __forceinline__ int64_t tiles_of(const GranuleCast& cast) {
  return ceil_div(cast.columns, kTile) * ceil_div(cast.rows, kTile);
}
__device__ __forceinline__ int thread_group() {
  return static_cast<int>(threadIdx.x) % kTileGroups;
}
__device__ __forceinline__ int thread_row() {
  return static_cast<int>(threadIdx.x) / kTileGroups * kOctet;
}

/// The kernels of quantize_granules.cu and quantize_rows.cu take bf16 and fp32, FP8 codes, and what
/// can be read and written in packs: x and codes are aligned to 16 and 8 bytes, columns is a
/// multiple of eight. Everything else takes those of quantize_granules_any.cu.
template <typename X>
__device__ __forceinline__ void load_tile(const X* x, const GranuleCast& cast, TilePlace tile,
                                          Octet<X> (&octets)[kOctet]) {
  const int64_t row = tile.row + thread_row();
  const int64_t column = tile.column + thread_group() * kOctet;
#pragma unroll
  for (int i = 0; i < kOctet; ++i) {
    octets[i] = load_octet<true>(x + (row + i) * cast.columns + column,
                                 row + i < cast.rows ? cast.columns - column : 0);
  }
}

__device__ __forceinline__ void store_row(const GranuleCast& cast, TilePlace tile, int i,
                                          const CodeWords& codes) {
  const int64_t row = tile.row + thread_row() + i;
  const int64_t column = tile.column + thread_group() * kOctet;
  store_codes<true>(cast.codes + row * cast.columns + column, codes,
                    row < cast.rows ? cast.columns - column : 0);
}

/// Maxima of the 128 columns over the 16 rows of each warp, as magnitude bits of X (in pairs for
/// 16-bit types): [warps][kTileGroups * words of an octet]. All threads of the block.
template <typename X>
__device__ __forceinline__ void put_column_peaks(const Octet<X> (&octets)[kOctet],
                                                 uint32_t* peaks) {
  constexpr int kWords = Octet<X>::kWords;
  constexpr uint32_t kMagnitude = sizeof(X) == 4 ? 0x7FFFFFFFU : 0x7FFF7FFFU;
#pragma unroll
  for (int word = 0; word < kWords; ++word) {
    Peak<X> peak;
#pragma unroll
    for (int i = 0; i < kOctet; ++i) {
      peak.raise(octets[i].words[word] & kMagnitude);
    }
    peak.raise(__shfl_xor_sync(kAllLanes, peak.bits, kTileGroups));
    if (lane_index() < kTileGroups) {
      peaks[(warp_index() * kTileGroups + lane_index()) * kWords + word] = peak.bits;
    }
  }
}

/// The amax of a column of the tile over `Warps` warps from `first` on.
template <int Warps, typename X>
__device__ __forceinline__ float column_amax(const uint32_t* peaks, int first, int column) {
  constexpr int kWords = Octet<X>::kWords;
  constexpr int kPerWord = kOctet / kWords;
  Peak<X> peak;
#pragma unroll
  for (int warp = first; warp < first + Warps; ++warp) {
    const uint32_t word = peaks[warp * kTileGroups * kWords + column / kPerWord];
    peak.raise(kPerWord == 1 ? word : word >> column % 2 * 16 & 0xFFFFU);
  }
  return peak.value();
}

/// FP8 codes of eight values and their counts; factor_of(column) as for encode_octet.
template <typename X, typename FactorOf>
__device__ __forceinline__ CodeWords encode_granules(const Octet<X>& octet, DType code_type,
                                                     FactorOf factor_of, bool counts,
                                                     Tally& tally) {
  Tally uncounted;
  const bool is_e5m2 = code_type == DType::e5m2;
  const CodeWords codes = is_e5m2 ? encode_octet<e5m2, false>(octet, factor_of, uncounted)
                                  : encode_octet<e4m3, false>(octet, factor_of, uncounted);
  if (counts) {
    const float limit = is_e5m2 ? kSaturation<e5m2> : kSaturation<e4m3>;
#pragma unroll
    for (int i = 0; i < kOctet; i += 2) {
      float values[2];
      octet.pair(i / 2, values[0], values[1]);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint32_t code = codes.values[(i + j) / 4] >> (i + j) % 4 * 8;
        tally.count(values[j], values[j] * factor_of(i + j), limit, code);
      }
    }
  }
  return codes;
}

/// Codes of the tile with the factors of its columns ([kOctet] of this thread), transposed.
template <typename X>
__device__ __forceinline__ void cast_columns_of_tile(const Octet<X> (&octets)[kOctet],
                                                     const float* factors, const GranuleCast& cast,
                                                     TilePlace tile, uint32_t* tile_words,
                                                     Tally& tally) {
  float own[kOctet];
#pragma unroll
  for (int j = 0; j < kOctet; ++j) {
    own[j] = factors[j];
  }
  const auto factor_of = [&own](int column) { return own[column]; };
  const bool counts = cast.statistics != nullptr && cast.codes == nullptr;
  CodeWords codes[kOctet];
#pragma unroll
  for (int i = 0; i < kOctet; ++i) {
    codes[i] = encode_granules(octets[i], cast.code_type, factor_of, counts, tally);
  }
  put_transposed(codes, tile_words);
  __syncthreads();
  write_transposed(tile_words, cast.transposed, tile.row, tile.column, cast.rows, cast.columns,
                   cast.transposed_aligned);
  __syncthreads();
}

/// Host: Granularity::row, in packs.
void quantize_rows(const Stream& stream, ConstView x, const GranuleCast& cast);

/// Host: any granularity, types, widths and alignment.
void quantize_any_granules(const Stream& stream, ConstView x, const GranuleCast& cast);

}  // namespace fp8train::ops::cuda
