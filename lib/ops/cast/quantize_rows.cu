// Casts with one scale for each row, or for each column in the other orientation: a block per row;
// for columns a pass for the maxima and another for the cast.

#include "ops/cast/granule_cast.cuh"

namespace fp8train::ops::cuda {
namespace {

/// A block for each row; its second read of the row comes from a cache.
template <typename X>
__global__ void __launch_bounds__(kTileThreads, 4)
    rows_kernel(const X* __restrict__ x, GranuleCast cast) {
  FP8TRAIN_SHARED_ARRAY(uint32_t, shared, kTileWarps);
  uint32_t largest = 0;
  Tally tally;
  for (int64_t row = blockIdx.x; row < cast.rows; row += gridDim.x) {
    const X* from = x + row * cast.columns;
    Peak<X> peak;
    for (int64_t i = int64_t{threadIdx.x} * kOctet; i < cast.columns; i += kTileThreads * kOctet) {
      peak.add(load_octet<true>(from + i, cast.columns - i));
    }
    const float amax =
        float_of(block_reduce<kTileThreads>(bits_of(peak.value()), Largest{}, shared));
    largest = Largest{}(largest, bits_of(amax));
    const float factor = cast.rule.factor(amax);
    if (threadIdx.x == 0) {
      cast.rowwise.keep(row, 0, amax, cast.rule);
    }
    const auto factor_of = [factor](int /*column*/) { return factor; };
    for (int64_t i = int64_t{threadIdx.x} * kOctet; i < cast.columns; i += kTileThreads * kOctet) {
      const Octet<X> octet = load_octet<true>(from + i, cast.columns - i);
      store_codes<true>(
          cast.codes + row * cast.columns + i,
          encode_granules(octet, cast.code_type, factor_of, cast.statistics != nullptr, tally),
          cast.columns - i);
    }
  }
  if (threadIdx.x == 0 && cast.amax != nullptr) {
    atomicMax(reinterpret_cast<unsigned*>(cast.amax), largest);
  }
  if (cast.statistics != nullptr) {
    add_to_statistics(cast.statistics, tally, shared);
  }
}

/// Raises columnwise.scale, zeros before, to the maxima of the columns, and the amax of the matrix
/// where no rows are cast.
template <typename X>
__global__ void __launch_bounds__(kTileThreads)
    column_amax_kernel(const X* __restrict__ x, GranuleCast cast) {
  FP8TRAIN_SHARED_ARRAY(uint32_t, peaks, kTileWarps * kTileGroups * Octet<X>::kWords);
  FP8TRAIN_SHARED_ARRAY(uint32_t, shared, kTileWarps);
  uint32_t largest = 0;
  for (int64_t index = blockIdx.x; index < tiles_of(cast); index += gridDim.x) {
    const TilePlace tile = tile_place(cast, index);
    Octet<X> octets[kOctet];
    load_tile(x, cast, tile, octets);
    put_column_peaks(octets, peaks);
    __syncthreads();
    const int column = static_cast<int>(threadIdx.x);
    if (column < kTile && tile.column + column < cast.columns) {
      const float amax = column_amax<kTileWarps, X>(peaks, 0, column);
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

/// columnwise.scale holds maxima, then scales.
struct FinishColumns {
  GranuleScales scales;
  GranuleRule rule;

  template <int N>
  __device__ void run(int64_t column) const {
    scales.keep(column, 0, scales.scale[column], rule);
  }
};

/// Casts with the scales in columnwise.scale, one for each column.
template <typename X>
__global__ void __launch_bounds__(kTileThreads, (kTileBlocks<true, false, X>))
    columns_kernel(const X* __restrict__ x, GranuleCast cast) {
  FP8TRAIN_SHARED_ARRAY(Words, tile_memory, kTileWords / 4);
  FP8TRAIN_SHARED_ARRAY(uint32_t, shared, kTileWarps);
  auto* const tile_words = reinterpret_cast<uint32_t*>(tile_memory);
  Tally tally;
  for (int64_t index = blockIdx.x; index < tiles_of(cast); index += gridDim.x) {
    const TilePlace tile = tile_place(cast, index);
    Octet<X> octets[kOctet];
    load_tile(x, cast, tile, octets);
    float factors[kOctet];
#pragma unroll
    for (int j = 0; j < kOctet; ++j) {
      const int64_t column = tile.column + thread_group() * kOctet + j;
      factors[j] = column < cast.columns ? cast.columnwise.scale[column] : 0.0F;
    }
    cast_columns_of_tile(octets, factors, cast, tile, tile_words, tally);
  }
  if (cast.codes == nullptr && cast.statistics != nullptr) {
    add_to_statistics(cast.statistics, tally, shared);
  }
}

template <typename X>
void cast_in_packs(const Stream& stream, const X* x, const GranuleCast& cast) {
  const int64_t tiles = ceil_div(cast.rows, kTile) * ceil_div(cast.columns, kTile);
  const LaunchShape by_tile = {blocks_for(stream, tiles, 1), kTileThreads};
  if (cast.codes != nullptr) {
    launch(stream, {blocks_for(stream, cast.rows, 1), kTileThreads}, rows_kernel<X>, x, cast);
  }
  if (cast.transposed != nullptr) {
    const size_t bytes = sizeof(float) * static_cast<size_t>(cast.columns);
    check_cuda(cudaMemsetAsync(cast.columnwise.scale, 0, bytes, cuda_context(stream).stream),
               "resetting column maxima");
    launch(stream, by_tile, column_amax_kernel<X>, x, cast);
    map<1>(stream, cast.columns, true, FinishColumns{cast.columnwise, cast.rule});
    launch(stream, by_tile, columns_kernel<X>, x, cast);
  }
}

}  // namespace

void quantize_rows(const Stream& stream, ConstView x, const GranuleCast& cast) {
  if (x.dtype == DType::bf16) {
    cast_in_packs(stream, x.as<bf16>(), cast);
  } else {
    cast_in_packs(stream, x.as<float>(), cast);
  }
}

}  // namespace fp8train::ops::cuda
