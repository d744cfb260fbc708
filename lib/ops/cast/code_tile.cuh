#pragma once
// How kernels that cast to FP8 divide a matrix into tiles, transpose the codes of a tile, and add
// up what a block has seen. A block of kTileThreads threads holds a tile of 128 x 128 elements in
// registers: thread t has the 8 columns 8 * (t % 16) .. of the 8 rows 8 * (t / 16) .., so that 16
// threads read and write whole lines of a row, and a thread can transpose its 8 x 8 codes without
// help. Only for .cu files.

#include <cstdint>

#include "base/math.h"
#include "numeric/bits.h"
#include "ops/cast/quantize.h"
#include "ops/cast/vec8.cuh"

namespace fp8train::ops::cuda {

/// The parts of quantize() and dequantize() that have blocks, of codes of a byte and of e2m1.
decltype(ops::quantize) quantize_blocks, quantize_fp4;
decltype(ops::dequantize) dequantize_blocks, dequantize_fp4;

constexpr int kTile = 128;
constexpr int kTileThreads = 256;
constexpr int kTileGroups = kTile / kVec8;     // threads per row, and per column
constexpr int kTileWords = kTile * kTile / 4;  // of shared memory for the codes of a tile

/// Blocks that a multiprocessor is to hold where tiles of X are read in packs: with 64 KiB and more
/// on their way from memory its latency is hidden.
template <typename X>
constexpr int kTileBlocks = sizeof(X) == 4 ? 2 : 3;

/// The first row and column of a tile within its matrix.
struct TileLocation {
  int64_t row, column;
};

FP8TRAIN_HD int64_t tiles_of(int64_t rows, int64_t columns) {
  return ceil_div(rows, kTile) * ceil_div(columns, kTile);
}
/// Returns the location of tile `index`; tiles are counted along the rows of a matrix of `columns`
/// columns.
__device__ __forceinline__ TileLocation tile_location(int64_t columns, int64_t index) {
  const int64_t across = ceil_div(columns, kTile);
  return {index / across * kTile, index % across * kTile};
}

/// Which eight columns of a tile this thread has, of kTileGroups.
__device__ __forceinline__ int thread_group() {
  return static_cast<int>(threadIdx.x) % kTileGroups;
}
/// The first of this thread's eight rows of a tile.
__device__ __forceinline__ int thread_row() {
  return static_cast<int>(threadIdx.x) / kTileGroups * kVec8;
}

/// *amax = max(*amax, value) over the values, not negative, of a whole block. What is there is not
/// negative either.
__device__ __forceinline__ void raise_amax(float* amax, float value, uint32_t* shared) {
  const uint32_t largest = block_reduce<kTileThreads>(bits_of(value), Largest{}, shared);
  if (threadIdx.x == 0) {
    atomicMax(reinterpret_cast<unsigned*>(amax), largest);
  }
}

/// Adds what the threads of a block have counted. `shared`: as for block_reduce.
__device__ __forceinline__ void add_to_statistics(QuantizeStatistics* statistics,
                                                  const CastCounts& cast_counts, uint32_t* shared) {
  const uint32_t saturated = block_reduce<kTileThreads>(cast_counts.saturated, Sum{}, shared);
  const uint32_t underflow = block_reduce<kTileThreads>(cast_counts.underflow, Sum{}, shared);
  if (threadIdx.x == 0) {
    using Counter = unsigned long long;
    atomicAdd(reinterpret_cast<Counter*>(&statistics->saturated), Counter{saturated});
    atomicAdd(reinterpret_cast<Counter*>(&statistics->underflow), Counter{underflow});
  }
}

/// Begins a count of `count` elements.
struct ResetStatistics {
  QuantizeStatistics* statistics;
  uint64_t count;

  template <int N>
  __device__ void run(int64_t /*i*/) const {
    *statistics = {count, 0, 0};
  }
};

/// Host: starts a new count of `count` elements.
inline void reset_statistics(const Stream& stream, QuantizeStatistics* statistics, int64_t count) {
  map<1>(stream, 1, true, ResetStatistics{statistics, static_cast<uint64_t>(count)});
}

/// Bytes j of four words become the bytes of word j.
__device__ __forceinline__ void transpose_4x4(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d) {
  const uint32_t ab_low = __byte_perm(a, b, 0x5140);
  const uint32_t ab_high = __byte_perm(a, b, 0x7362);
  const uint32_t cd_low = __byte_perm(c, d, 0x5140);
  const uint32_t cd_high = __byte_perm(c, d, 0x7362);
  a = __byte_perm(ab_low, cd_low, 0x5410);
  b = __byte_perm(ab_low, cd_low, 0x7632);
  c = __byte_perm(ab_high, cd_high, 0x5410);
  d = __byte_perm(ab_high, cd_high, 0x7632);
}

/// Puts the thread's 8 rows of 8 codes into the shared tile [128 columns][128 rows], transposed.
/// Column c keeps its 8-byte unit u at u ^ (c / 8): the 16 threads of a row, which write to columns
/// eight apart, then hit 16 different pairs of banks.
__device__ __forceinline__ void put_transposed(CodeWords (&codes)[kVec8], uint32_t* shared) {
  const int group = thread_group();
  const int unit = static_cast<int>(threadIdx.x) / kTileGroups ^ group;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    transpose_4x4(codes[0].values[half], codes[1].values[half], codes[2].values[half],
                  codes[3].values[half]);
    transpose_4x4(codes[4].values[half], codes[5].values[half], codes[6].values[half],
                  codes[7].values[half]);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const CodeWords column = {{codes[j].values[half], codes[4 + j].values[half]}};
      store_pack(shared + (group * kVec8 + half * 4 + j) * (kTile / 4) + unit * 2, column);
    }
  }
}

/// Codes of the thread's rows 4 * quad .. 4 * quad + 3, as put_transposed writes those of eight. So
/// that the two halves of a warp hit different banks, let them have different quads at a time.
__device__ __forceinline__ void put_transposed_quad(CodeWords (&codes)[4], int quad,
                                                    uint32_t* shared) {
  const int group = thread_group();
  const int unit = static_cast<int>(threadIdx.x) / kTileGroups ^ group;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    transpose_4x4(codes[0].values[half], codes[1].values[half], codes[2].values[half],
                  codes[3].values[half]);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      shared[(group * kVec8 + half * 4 + j) * (kTile / 4) + unit * 2 + quad] =
          codes[j].values[half];
    }
  }
}

/// Where the shared tile holds the code of a row and a column of the tile.
__device__ __forceinline__ int transposed_byte(int row, int column) {
  return column * kTile + (row / kVec8 ^ column / kVec8) * kVec8 + row % kVec8;
}

/// Where the codes of a matrix [rows, columns] go, transposed.
struct TransposedCodes {
  uint8_t* codes;  ///< [columns, rows]
  int64_t rows, columns;
  bool aligned;  ///< codes to 16 bytes, and rows is a multiple of 16
};

/// Writes the shared tile of codes that put_transposed filled. All threads of the block.
__device__ __forceinline__ void write_transposed(const uint32_t* shared, TileLocation tile,
                                                 const TransposedCodes& to) {
  constexpr int kChunk = 16;
  constexpr int kChunks = kTile / kChunk;
  constexpr int kColumns = kTileThreads / kChunks;  // that the threads write at a time
  static_assert(kColumns % (2 * kVec8) == 0);
  const auto thread = static_cast<unsigned>(threadIdx.x);
  const auto chunk = static_cast<int>(thread % kChunks);
  auto at = static_cast<int>(thread / kChunks);
  const int64_t first = tile.row + chunk * kChunk;
  const int present = first + kChunk <= to.rows ? kChunk : static_cast<int>(to.rows - first);
  const int last =
      tile.column + kTile <= to.columns ? kTile : static_cast<int>(to.columns - tile.column);
  // Reads of 16 bytes: an odd group has the two units of a chunk swapped.
  const bool swapped = at / kVec8 % 2 != 0;
  uint8_t* begin = to.codes + (tile.column + at) * to.rows + first;
#pragma unroll 1
  for (; at < last && present > 0; at += kColumns, begin += to.rows * kColumns) {
    if (to.aligned) {
      const Words words = load_pack<4>(shared + at * (kTile / 4) + (chunk ^ at / (2 * kVec8)) * 4);
      const Words ordered = {{words.values[swapped ? 2 : 0], words.values[swapped ? 3 : 1],
                              words.values[swapped ? 0 : 2], words.values[swapped ? 1 : 3]}};
      store_pack(reinterpret_cast<uint32_t*>(begin), ordered);
      continue;
    }
    const auto* bytes = reinterpret_cast<const uint8_t*>(shared);
#pragma unroll 1
    for (int j = 0; j < present; ++j) {
      begin[j] = bytes[transposed_byte(chunk * kChunk + j, at)];
    }
  }
}

/// Host: returns TransposedCodes::aligned for `to`.
inline bool transposed_is_aligned(const void* to, int64_t rows) {
  return is_aligned(to) && rows % 16 == 0;
}

}  // namespace fp8train::ops::cuda
