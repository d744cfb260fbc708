#pragma once
// Code that the kernels share that cast with one scale for each block. Only for .cu files.

#include "base/math.h"
#include "ops/cast/code_tile.cuh"
#include "ops/cast/scale_blocks.h"

namespace fp8train::ops::cuda {

constexpr int kTileWarps = kTileThreads / kWarp;

/// One cast of a matrix [rows, columns]. An orientation whose codes are null is not wanted.
struct BlockwiseCast {
  int64_t rows, columns;
  DType code_type;
  uint8_t* codes;
  TransposedCodes transposed;
  BlockScales rowwise, columnwise;
  BlockRule rule;
  float* amax;                     ///< of the whole matrix, raised; may be null
  QuantizeStatistics* statistics;  ///< may be null
  CastStep step;
};

/// Element `at` of x, whose float type is known when the kernel runs. with_type_of() would make
/// more code of it.
__device__ __forceinline__ float load_element(const void* x, DType type, int64_t at) {
  switch (type) {
    case DType::f32:
      return static_cast<const float*>(x)[at];
    case DType::bf16:
      return decode(static_cast<const bf16*>(x)[at]);
    default:
      return decode(static_cast<const f16*>(x)[at]);
  }
}

// The kernels of quantize_blockwise.cu and quantize_rows.cu take bf16 and fp32, FP8 codes, and what
// can be read and written in packs: x and codes are aligned to 16 and 8 bytes, columns is a
// multiple of eight. Everything else takes those of quantize_blockwise_any.cu.

/// Reads this thread's 8 x 8 elements of a tile; zeros where x has none.
template <typename X>
__device__ __forceinline__ void load_tile(const X* x, const BlockwiseCast& cast, TileLocation tile,
                                          Vec8<X> (&vecs)[kVec8]) {
  const int64_t row = tile.row + thread_row();
  const int64_t column = tile.column + thread_group() * kVec8;
#pragma unroll
  for (int i = 0; i < kVec8; ++i) {
    vecs[i] = load_vec8<true>(x + (row + i) * cast.columns + column,
                              row + i < cast.rows ? cast.columns - column : 0);
  }
}

/// Stores the codes of this thread's row i of a tile.
__device__ __forceinline__ void store_row(const BlockwiseCast& cast, TileLocation tile, int i,
                                          const CodeWords& codes) {
  const int64_t row = tile.row + thread_row() + i;
  const int64_t column = tile.column + thread_group() * kVec8;
  store_codes<true>(cast.codes + row * cast.columns + column, codes,
                    row < cast.rows ? cast.columns - column : 0);
}

/// Maxima of the 128 columns over the 16 rows of each warp, as magnitude bits of X (in pairs for
/// 16-bit types): [warps][kTileGroups * words of a Vec8]. All threads of the block.
template <typename X>
__device__ __forceinline__ void put_column_amax_bits(const Vec8<X> (&vecs)[kVec8],
                                                     uint32_t* all_amax_bits) {
  constexpr int kWords = Vec8<X>::kWords;
  constexpr uint32_t kMagnitude = sizeof(X) == 4 ? 0x7FFFFFFFU : 0x7FFF7FFFU;
#pragma unroll
  for (int word = 0; word < kWords; ++word) {
    AmaxBits<X> amax_bits;
#pragma unroll
    for (int i = 0; i < kVec8; ++i) {
      amax_bits.raise(vecs[i].words[word] & kMagnitude);
    }
    amax_bits.raise(__shfl_xor_sync(kAllLanes, amax_bits.bits, kTileGroups));
    if (lane_index() < kTileGroups) {
      all_amax_bits[(warp_index() * kTileGroups + lane_index()) * kWords + word] = amax_bits.bits;
    }
  }
}

/// The amax of a column of the tile over `Warps` warps from `first` on.
template <int Warps, typename X>
__device__ __forceinline__ float column_amax(const uint32_t* all_amax_bits, int first, int column) {
  constexpr int kWords = Vec8<X>::kWords;
  constexpr int kPerWord = kVec8 / kWords;
  AmaxBits<X> amax_bits;
#pragma unroll
  for (int warp = first; warp < first + Warps; ++warp) {
    const uint32_t word = all_amax_bits[warp * kTileGroups * kWords + column / kPerWord];
    amax_bits.raise(kPerWord == 1 ? word : word >> column % 2 * 16 & 0xFFFFU);
  }
  return amax_bits.value();
}

/// Codes of the tile with the factors of its columns ([kVec8] of this thread), transposed.
template <typename X>
__device__ __forceinline__ void cast_columns_of_tile(const Vec8<X> (&vecs)[kVec8],
                                                     const float* factors,
                                                     const BlockwiseCast& cast, TileLocation tile,
                                                     uint32_t* tile_words,
                                                     CastCounts& cast_counts) {
  float own[kVec8];
#pragma unroll
  for (int j = 0; j < kVec8; ++j) {
    own[j] = factors[j];
  }
  const auto factor_of = [&own](int column) { return own[column]; };
  const bool counts = cast.statistics != nullptr && cast.codes == nullptr;
  CodeWords codes[kVec8];
#pragma unroll
  for (int i = 0; i < kVec8; ++i) {
    codes[i] = encode_vec8(vecs[i], cast.code_type, factor_of, counts, cast_counts);
  }
  put_transposed(codes, tile_words);
  __syncthreads();
  write_transposed(tile_words, tile, cast.transposed);
  __syncthreads();
}

/// Adds what a block has seen of a cast to `amax` and `statistics`, unless they are null.
/// `largest`: a magnitude, as bits. All threads of the block.
__device__ __forceinline__ void finish_blocks(float* amax, uint32_t largest,
                                              QuantizeStatistics* statistics,
                                              const CastCounts& cast_counts, uint32_t* shared) {
  if (amax != nullptr) {
    raise_amax(amax, float_of(largest), shared);
  }
  if (statistics != nullptr) {
    add_to_statistics(statistics, cast_counts, shared);
  }
}

/// Host: a scale for each row, per::row, in packs.
void quantize_rows(const Stream& stream, ConstView x, const BlockwiseCast& cast);

/// Host: any block, types, widths and alignment.
void quantize_any_blocks(const Stream& stream, ConstView x, ScaleBlock block,
                         const BlockwiseCast& cast);

}  // namespace fp8train::ops::cuda
