#pragma once
// What the kernels that cast with one scale for each granule share. Only for .cu files.

#include "ops/cuda/code_tile.h"
#include "ops/granules.h"

namespace fp8train::ops::cuda {

constexpr int kTileWarps = kTileThreads / kWarp;

/// One cast of a matrix [rows, columns]. An orientation without codes is not wanted.
struct GranuleCast {
  int64_t rows, columns;
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
  const int64_t across = (cast.columns + kTile - 1) / kTile;
  return {index / across * kTile, index % across * kTile};
}
__device__ __forceinline__ int64_t tiles_of(const GranuleCast& cast) {
  return (cast.columns + kTile - 1) / kTile * ((cast.rows + kTile - 1) / kTile);
}
__device__ __forceinline__ int thread_group() {
  return static_cast<int>(threadIdx.x) % kTileGroups;
}
__device__ __forceinline__ int thread_row() {
  return static_cast<int>(threadIdx.x) / kTileGroups * kOctet;
}

template <bool Packed, typename X>
__device__ __forceinline__ void load_tile(const X* x, const GranuleCast& cast, TilePlace tile,
                                          Octet<X> (&octets)[kOctet]) {
  const int64_t row = tile.row + thread_row();
  const int64_t column = tile.column + thread_group() * kOctet;
#pragma unroll
  for (int i = 0; i < kOctet; ++i) {
    octets[i] = load_octet<Packed>(x + (row + i) * cast.columns + column,
                                   row + i < cast.rows ? cast.columns - column : 0);
  }
}

template <bool Packed>
__device__ __forceinline__ void store_row(const GranuleCast& cast, TilePlace tile, int i,
                                          const CodeWords& codes) {
  const int64_t row = tile.row + thread_row() + i;
  const int64_t column = tile.column + thread_group() * kOctet;
  store_codes<Packed>(cast.codes + row * cast.columns + column, codes,
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

/// Codes of the tile with the factors of its columns ([kOctet] of this thread), transposed.
template <bool Counted, typename Code, typename X>
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
  CodeWords codes[kOctet];
#pragma unroll
  for (int i = 0; i < kOctet; ++i) {
    codes[i] = encode_octet<Code, Counted>(octets[i], factor_of, tally);
  }
  put_transposed(codes, tile_words);
  __syncthreads();
  write_transposed(tile_words, cast.transposed, tile.row, tile.column, cast.rows, cast.columns,
                   cast.transposed_aligned);
  __syncthreads();
}

/// Host: Granularity::row. Packed: x is aligned to 16 bytes, codes to 8, columns is a multiple of
/// eight and nothing is counted.
void quantize_rows(const Stream& stream, ConstView x, DType code_type, const GranuleCast& cast,
                   bool packed);

}  // namespace fp8train::ops::cuda
