// Casts with one scale for each block. 1x128, 1x32 and squares take one kernel that reads the input
// once and writes both orientations: a block holds a tile of 128 x 128 in registers, finds the amax
// of its blocks by shuffles along rows and through shared memory along columns, and casts from
// registers. A scale per row takes a block per row; one per column a pass for the maxima
// and another for the cast (quantize_rows.cu).

#include "base/error.h"
#include "ops/cast/blockwise_cast.cuh"
#include "ops/dispatch/cuda_operations.h"

namespace fp8train::ops::cuda {
namespace {

/// Codes of the tile along rows, each block of `Width` columns with its own scale. The lanes that
/// share blocks share the work on their scales: each makes those of some rows.
template <int Width, typename X>
__device__ __forceinline__ void cast_rows_of_tile(const Vec8<X> (&vecs)[kVec8],
                                                  const BlockwiseCast& cast, TileLocation tile,
                                                  uint32_t& largest, CastCounts& cast_counts) {
  constexpr int kLanes = Width / kVec8;
  constexpr int kPasses = kLanes < kVec8 ? kVec8 / kLanes : 1;
  const int group = thread_group();
  const int lane = group % kLanes;
  AmaxBits<X> own[kPasses];
#pragma unroll
  for (int i = 0; i < kVec8; ++i) {
    AmaxBits<X> amax_bits;
    amax_bits.add(vecs[i]);
#pragma unroll
    for (int bits = kLanes / 2; bits > 0; bits /= 2) {
      amax_bits.raise(__shfl_xor_sync(kAllLanes, amax_bits.bits, bits));
    }
    own[i / kLanes].bits = lane == i % kLanes ? amax_bits.bits : own[i / kLanes].bits;
  }
  float factors[kPasses];
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    const float amax = own[pass].value();  // zero where a lane has no row
    largest = Largest{}(largest, bits_of(amax));
    factors[pass] = cast.rule.factor(amax);
    const int i = pass * kLanes + lane;
    if (i < kVec8) {
      cast.rowwise.keep(tile.row + thread_row() + i, (tile.column + group * kVec8) / Width, amax,
                        cast.rule);
    }
  }
#pragma unroll
  for (int i = 0; i < kVec8; ++i) {
    const float factor = __shfl_sync(kAllLanes, factors[i / kLanes], i % kLanes, kLanes);
    const auto factor_of = [factor](int /*column*/) { return factor; };
    store_row(
        cast, tile, i,
        encode_vec8(vecs[i], cast.code_type, factor_of, cast.statistics != nullptr, cast_counts));
  }
}

/// Blocks of 1 x Width in both orientations.
template <int Width, typename X>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks<X>)
    blockwise_kernel(const X* __restrict__ x, BlockwiseCast cast) {
  constexpr int kBands = kTile / Width;  // blocks of a column of the tile
  FP8TRAIN_SHARED_ARRAY(Words, tile_memory, kTileWords / 4);
  FP8TRAIN_SHARED_ARRAY(uint32_t, all_amax_bits, kTileWarps * kTileGroups * Vec8<X>::kWords);
  FP8TRAIN_SHARED_ARRAY(float, factors, kBands* kTile);
  FP8TRAIN_SHARED_ARRAY(uint32_t, shared, kTileWarps);
  auto* const tile_words = reinterpret_cast<uint32_t*>(tile_memory);
  uint32_t largest = 0;
  CastCounts cast_counts;
  for (int64_t index = blockIdx.x; index < tiles_of(cast.rows, cast.columns); index += gridDim.x) {
    const TileLocation tile = tile_location(cast.columns, index);
    Vec8<X> vecs[kVec8];
    load_tile(x, cast, tile, vecs);
    if (cast.codes != nullptr) {
      cast_rows_of_tile<Width>(vecs, cast, tile, largest, cast_counts);
    }
    if (cast.transposed.codes == nullptr) {
      continue;
    }
    put_column_amax_bits(vecs, all_amax_bits);
    __syncthreads();
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < kBands * kTile; i += kTileThreads) {
      constexpr int kWarps = kTileWarps / kBands;
      const float amax = column_amax<kWarps, X>(all_amax_bits, i / kTile * kWarps, i % kTile);
      largest = Largest{}(largest, bits_of(amax));
      cast.columnwise.keep(tile.column + i % kTile, tile.row / Width + i / kTile, amax, cast.rule);
      factors[i] = cast.rule.factor(amax);
    }
    __syncthreads();
    cast_columns_of_tile(vecs, factors + thread_row() / Width * kTile + thread_group() * kVec8,
                         cast, tile, tile_words, cast_counts);
  }
  finish_blocks(cast.amax, largest, cast.statistics, cast_counts, shared);
}

constexpr int kAcross32 = kTile / 32;  // squares of 32 x 32 side by side in a tile

/// The amax bits of the square of `Side` x `Side` elements that this thread's elements lie in. All
/// threads of the block.
template <int Side>
__device__ __forceinline__ uint32_t raise_square(uint32_t bits, uint32_t* shared) {
  if constexpr (Side == kTile) {
    return block_reduce<kTileThreads>(bits, Largest{}, shared);
  } else {
    static_assert(Side == 32);  // four groups of columns by four of rows, those of two warps
    constexpr int kLanes[] = {1, 2, kTileGroups};
#pragma unroll
    for (const int lanes : kLanes) {
      bits = Largest{}(bits, __shfl_xor_sync(kAllLanes, bits, lanes));
    }
    const int square = thread_group() / kAcross32;
    if (lane_index() < kTileGroups && lane_index() % kAcross32 == 0) {
      shared[warp_index() * kAcross32 + square] = bits;
    }
    __syncthreads();
    bits = Largest{}(bits, shared[(warp_index() ^ 1) * kAcross32 + square]);
    __syncthreads();
    return bits;
  }
}

/// Stores the scale of a square in both orientations, once, or for each of its rows.
template <int Side>
__device__ __forceinline__ void keep_square(const BlockwiseCast& cast, TileLocation tile,
                                            float amax) {
  if constexpr (Side == kTile) {
    if (threadIdx.x == 0 && cast.codes != nullptr) {
      cast.rowwise.keep(tile.row / kTile, tile.column / kTile, amax, cast.rule);
    }
    if (threadIdx.x == 0 && cast.transposed.codes != nullptr) {
      cast.columnwise.keep(tile.column / kTile, tile.row / kTile, amax, cast.rule);
    }
  } else {
    const int64_t row = tile.row + thread_row();
    const int64_t column = tile.column + thread_group() * kVec8;
    // The four threads that have the same rows, or columns, share them.
    for (int i = thread_group() % kAcross32; cast.codes != nullptr && i < kVec8; i += kAcross32) {
      cast.rowwise.keep(row + i, column / Side, amax, cast.rule);
    }
    const int first = thread_row() / kVec8 % kAcross32;
    for (int i = first; cast.transposed.codes != nullptr && i < kVec8; i += kAcross32) {
      cast.columnwise.keep(column + i, row / Side, amax, cast.rule);
    }
  }
}

/// Squares of `Side` x `Side`: the codes are the same in both orientations.
template <int Side, typename X>
__global__ void __launch_bounds__(kTileThreads, 2)
    squares_kernel(const X* __restrict__ x, BlockwiseCast cast) {
  FP8TRAIN_SHARED_ARRAY(Words, tile_memory, kTileWords / 4);
  FP8TRAIN_SHARED_ARRAY(uint32_t, shared, kTileWarps * kAcross32);
  auto* const tile_words = reinterpret_cast<uint32_t*>(tile_memory);
  uint32_t largest = 0;
  CastCounts cast_counts;
  for (int64_t index = blockIdx.x; index < tiles_of(cast.rows, cast.columns); index += gridDim.x) {
    const TileLocation tile = tile_location(cast.columns, index);
    Vec8<X> vecs[kVec8];
    load_tile(x, cast, tile, vecs);
    AmaxBits<X> amax_bits;
#pragma unroll
    for (int i = 0; i < kVec8; ++i) {
      amax_bits.add(vecs[i]);
    }
    const float amax = float_of(raise_square<Side>(bits_of(amax_bits.value()), shared));
    largest = Largest{}(largest, bits_of(amax));
    const float factor = cast.rule.factor(amax);
    keep_square<Side>(cast, tile, amax);
    const auto factor_of = [factor](int /*column*/) { return factor; };
    CodeWords codes[kVec8];
#pragma unroll
    for (int i = 0; i < kVec8; ++i) {
      codes[i] =
          encode_vec8(vecs[i], cast.code_type, factor_of, cast.statistics != nullptr, cast_counts);
      if (cast.codes != nullptr) {
        store_row(cast, tile, i, codes[i]);
      }
    }
    if (cast.transposed.codes != nullptr) {
      put_transposed(codes, tile_words);
      __syncthreads();
      write_transposed(tile_words, tile, cast.transposed);
      __syncthreads();
    }
  }
  finish_blocks(cast.amax, largest, cast.statistics, cast_counts, shared);
}

/// Starts the kernel for the blocks, in packs.
template <typename X>
void quantize_tiles(const Stream& stream, ScaleBlock block, const X* x, const BlockwiseCast& cast) {
  const LaunchShape by_tile = {blocks_for(stream, tiles_of(cast.rows, cast.columns), 1),
                               kTileThreads};
  if (block == per::block_128x128) {
    return launch(stream, by_tile, squares_kernel<128, X>, x, cast);
  }
  if (block == per::block_32x32) {
    return launch(stream, by_tile, squares_kernel<32, X>, x, cast);
  }
  if (block == per::block_1x32) {
    return launch(stream, by_tile, blockwise_kernel<32, X>, x, cast);
  }
  check(block == per::block_1x128, "quantize: no kernel for these blocks");
  launch(stream, by_tile, blockwise_kernel<128, X>, x, cast);
}

/// The types are chosen when the kernel runs.
struct DequantizeBlockwise {
  const void* codes;
  DType code_type;
  BlockScales scales;
  int64_t columns;
  void* y;
  DType y_type;

  template <int N>
  __device__ void run(int64_t i) const {
    const ScaleGrid& grid = scales.grid;
    const float factor = scales.inverse(i / columns / grid.height, i % columns / grid.width);
    with_type_of(ByteCodes{}, code_type, [&](auto code_tag) {
      with_type_of(FloatTypes{}, y_type, [&](auto y_tag) {
        const auto* const from = static_cast<const typename decltype(code_tag)::Type*>(codes) + i;
        store_decoded<N>(from, factor, static_cast<typename decltype(y_tag)::Type*>(y) + i);
      });
    });
  }
};

}  // namespace

void quantize_blocks(Stream stream, ConstView x, const QuantizedTensor& out, float* amax,
                     QuantizeStatistics* statistics, const CastOptions& options) {
  if (statistics != nullptr) {
    reset_statistics(stream, statistics, x.count());
  }
  const int64_t rows = x.shape.rows();
  const int64_t columns = x.shape.back();
  const View& codes = out.rowwise.codes;
  const View& transposed = out.columnwise.codes;
  const TensorFormat& format = out.format();
  const ScaleLayout layout = out.either().layout;
  const bool packed = x.dtype != DType::f16 && is_fp8(format.dtype) && is_aligned(x.data) &&
                      is_aligned(codes.data, kVec8) && columns % kVec8 == 0;
  const BlockwiseCast cast = {.rows = rows,
                              .columns = columns,
                              .code_type = format.dtype,
                              .codes = codes.as<uint8_t>(),
                              .transposed = {transposed.as<uint8_t>(), rows, columns,
                                             transposed_is_aligned(transposed.data, rows)},
                              .rowwise = block_scales(out.rowwise, format, layout),
                              .columnwise = block_scales(out.columnwise, format, layout),
                              .rule = block_rule(format, x.dtype),
                              .amax = amax,
                              .statistics = statistics,
                              .step = options.step};
  if (!packed) {
    quantize_any_blocks(stream, x, format.block, cast);
    return;
  }
  Fp8Types::check(cast.code_type);
  if (format.block == per::row) {
    quantize_rows(stream, x, cast);
  } else {
    with_type<bf16, float>(x.dtype, [&](auto tag) {
      quantize_tiles(stream, format.block, x.as<typename decltype(tag)::Type>(), cast);
    });
  }
}

void dequantize_blocks(Stream stream, const Encoded& x, View y) {
  const View& codes = x.codes;
  const int64_t columns = codes.shape.back();
  ByteCodes::check(codes.dtype);
  FloatTypes::check(y.dtype);
  map<kVec8>(
      stream, y.count(),
      columns % kVec8 == 0 && is_aligned(codes.data, kVec8) && is_aligned(y.data),
      DequantizeBlockwise{codes.data, codes.dtype, block_scales(x), columns, y.data, y.dtype});
}

}  // namespace fp8train::ops::cuda
