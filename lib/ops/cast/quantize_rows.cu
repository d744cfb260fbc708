// Casts with one scale for each row, or for each column in the other orientation: a block per row;
// for columns a pass for the maxima and another for the cast.

#include "ops/cast/blockwise_cast.cuh"

namespace fp8train::ops::cuda {
namespace {

/// A block for each row; its second read of the row comes from a cache.
template <typename X>
__global__ void __launch_bounds__(kTileThreads, 4)
    rows_kernel(const X* __restrict__ x, BlockwiseCast cast) {
  FP8TRAIN_SHARED_ARRAY(uint32_t, shared, kTileWarps);
  uint32_t largest = 0;
  CastCounts cast_counts;
  for (int64_t row = blockIdx.x; row < cast.rows; row += gridDim.x) {
    const X* from = x + row * cast.columns;
    float amax = 0.0F;
    if (cast.step == CastStep::codes) {
      amax = cast.rowwise.scale[row];
      __syncthreads();  // before thread 0 writes the scale
    } else {
      AmaxBits<X> amax_bits;
      for (int64_t i = int64_t{threadIdx.x} * kVec8; i < cast.columns; i += kTileThreads * kVec8) {
        amax_bits.add(load_vec8<true>(from + i, cast.columns - i));
      }
      amax = float_of(block_reduce<kTileThreads>(bits_of(amax_bits.value()), Largest{}, shared));
    }
    largest = Largest{}(largest, bits_of(amax));
    if (cast.step == CastStep::amax) {
      if (threadIdx.x == 0) {
        cast.rowwise.scale[row] = amax;
      }
      continue;
    }
    const float factor = cast.rule.factor(amax);
    if (threadIdx.x == 0) {
      cast.rowwise.keep(row, 0, amax, cast.rule);
    }
    const auto factor_of = [factor](int /*column*/) { return factor; };
    for (int64_t i = int64_t{threadIdx.x} * kVec8; i < cast.columns; i += kTileThreads * kVec8) {
      const Vec8<X> vec = load_vec8<true>(from + i, cast.columns - i);
      store_codes<true>(
          cast.codes + row * cast.columns + i,
          encode_vec8(vec, cast.code_type, factor_of, cast.statistics != nullptr, cast_counts),
          cast.columns - i);
    }
  }
  if (threadIdx.x == 0 && cast.amax != nullptr) {
    atomicMax(reinterpret_cast<unsigned*>(cast.amax), largest);
  }
  if (cast.statistics != nullptr) {
    add_to_statistics(cast.statistics, cast_counts, shared);
  }
}

/// Raises columnwise.scale, zeros before, to the maxima of the columns, and the amax of the matrix
/// where no rows are cast.
template <typename X>
__global__ void __launch_bounds__(kTileThreads)
    column_amax_kernel(const X* __restrict__ x, BlockwiseCast cast) {
  FP8TRAIN_SHARED_ARRAY(uint32_t, all_amax_bits, kTileWarps * kTileGroups * Vec8<X>::kWords);
  FP8TRAIN_SHARED_ARRAY(uint32_t, shared, kTileWarps);
  uint32_t largest = 0;
  for (int64_t index = blockIdx.x; index < tiles_of(cast.rows, cast.columns); index += gridDim.x) {
    const TileLocation tile = tile_location(cast.columns, index);
    Vec8<X> vecs[kVec8];
    load_tile(x, cast, tile, vecs);
    put_column_amax_bits(vecs, all_amax_bits);
    __syncthreads();
    const int column = static_cast<int>(threadIdx.x);
    if (column < kTile && tile.column + column < cast.columns) {
      const float amax = column_amax<kTileWarps, X>(all_amax_bits, 0, column);
      largest = Largest{}(largest, bits_of(amax));
      atomicMax(reinterpret_cast<unsigned*>(cast.columnwise.scale + tile.column + column),
                bits_of(amax));
    }
    __syncthreads();
  }
  if (cast.codes == nullptr && cast.amax != nullptr) {
    raise_amax(cast.amax, float_of(largest), shared);
  }
}

/// Turns the maxima in columnwise.scale into scales, and stores their reciprocals.
struct FinishColumns {
  BlockScales scales;
  BlockRule rule;

  template <int N>
  __device__ void run(int64_t column) const {
    scales.keep(column, 0, scales.scale[column], rule);
  }
};

/// Casts with the scales in columnwise.scale, one for each column.
template <typename X>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks<X>)
    columns_kernel(const X* __restrict__ x, BlockwiseCast cast) {
  FP8TRAIN_SHARED_ARRAY(Words, tile_memory, kTileWords / 4);
  FP8TRAIN_SHARED_ARRAY(uint32_t, shared, kTileWarps);
  auto* const tile_words = reinterpret_cast<uint32_t*>(tile_memory);
  CastCounts cast_counts;
  for (int64_t index = blockIdx.x; index < tiles_of(cast.rows, cast.columns); index += gridDim.x) {
    const TileLocation tile = tile_location(cast.columns, index);
    Vec8<X> vecs[kVec8];
    load_tile(x, cast, tile, vecs);
    float factors[kVec8];
#pragma unroll
    for (int j = 0; j < kVec8; ++j) {
      const int64_t column = tile.column + thread_group() * kVec8 + j;
      factors[j] = column < cast.columns ? cast.columnwise.scale[column] : 0.0F;
    }
    cast_columns_of_tile(vecs, factors, cast, tile, tile_words, cast_counts);
  }
  if (cast.codes == nullptr && cast.statistics != nullptr) {
    add_to_statistics(cast.statistics, cast_counts, shared);
  }
}

/// Starts the kernels of the orientations that are wanted.
template <typename X>
void cast_in_packs(const Stream& stream, const X* x, const BlockwiseCast& cast) {
  const LaunchShape by_tile = {blocks_for(stream, tiles_of(cast.rows, cast.columns), 1),
                               kTileThreads};
  if (cast.codes != nullptr) {
    launch(stream, {blocks_for(stream, cast.rows, 1), kTileThreads}, rows_kernel<X>, x, cast);
  }
  if (cast.transposed.codes != nullptr) {
    if (cast.step != CastStep::codes) {
      const size_t bytes = sizeof(float) * static_cast<size_t>(cast.columns);
      check_cuda(cudaMemsetAsync(cast.columnwise.scale, 0, bytes, cuda_context(stream).stream),
                 "resetting column maxima");
      launch(stream, by_tile, column_amax_kernel<X>, x, cast);
    }
    if (cast.step != CastStep::amax) {
      map<1>(stream, cast.columns, true, FinishColumns{cast.columnwise, cast.rule});
      launch(stream, by_tile, columns_kernel<X>, x, cast);
    }
  }
}

}  // namespace

void quantize_rows(const Stream& stream, ConstView x, const BlockwiseCast& cast) {
  with_type<bf16, float>(x.dtype, [&](auto tag) {
    cast_in_packs(stream, x.as<typename decltype(tag)::Type>(), cast);
  });
}

}  // namespace fp8train::ops::cuda
