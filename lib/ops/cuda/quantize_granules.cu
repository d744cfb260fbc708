// Casts with one scale for each granule. 1x128, 128x128 and 1x32 take one kernel that reads the
// input once and writes both orientations: a block holds a tile of 128 x 128 in registers, finds
// the amax of its granules by shuffles along rows and through shared memory along columns, and
// casts from registers. A scale per row takes a block per row; one per column a pass for the maxima
// and another for the cast.

#include <type_traits>

#include "ops/cuda/cuda_table.h"
#include "ops/cuda/granule_cast.h"

namespace fp8train::ops::cuda {
namespace {

/// Codes of the tile along rows, each granule of `Width` columns with its own scale.
template <int Width, bool Packed, typename Code, typename X>
__device__ __forceinline__ void cast_rows_of_tile(const Octet<X> (&octets)[kOctet],
                                                  const GranuleCast& cast, TilePlace tile,
                                                  uint32_t& largest, Tally& tally) {
  constexpr int kLanes = Width / kOctet;
  const int group = thread_group();
#pragma unroll
  for (int i = 0; i < kOctet; ++i) {
    Peak<X> peak;
    peak.add(octets[i]);
#pragma unroll
    for (int bits = kLanes / 2; bits > 0; bits /= 2) {
      peak.raise(__shfl_xor_sync(kAllLanes, peak.bits, bits));
    }
    const float amax = peak.value();
    largest = Largest{}(largest, bits_of(amax));
    const float factor = cast.rule.factor(amax);
    const int64_t row = tile.row + thread_row() + i;
    if (group % kLanes == 0) {
      cast.rowwise.keep(row, (tile.column + group * kOctet) / Width, amax, cast.rule);
    }
    const auto factor_of = [factor](int /*column*/) { return factor; };
    store_row<Packed>(cast, tile, i, encode_octet<Code, !Packed>(octets[i], factor_of, tally));
  }
}

/// Granules of 1 x Width in both orientations. Packed: as for load_octet, and no statistics.
template <int Width, bool Packed, typename X, typename Code>
__global__ void __launch_bounds__(kTileThreads, (kTileBlocks<Packed, false, X>))
    granules_kernel(const X* __restrict__ x, GranuleCast cast, TypeTag<Code> /*tag*/) {
  constexpr int kBands = kTile / Width;  // granules of a column of the tile
  FP8TRAIN_SHARED_ARRAY(Words, tile_memory, kTileWords / 4);
  FP8TRAIN_SHARED_ARRAY(uint32_t, peaks, kTileWarps * kTileGroups * Octet<X>::kWords);
  FP8TRAIN_SHARED_ARRAY(float, factors, kBands* kTile);
  FP8TRAIN_SHARED_ARRAY(uint32_t, shared, kTileWarps);
  auto* const tile_words = reinterpret_cast<uint32_t*>(tile_memory);
  uint32_t largest = 0;
  Tally tally;
  Tally tally_columns;
  for (int64_t index = blockIdx.x; index < tiles_of(cast); index += gridDim.x) {
    const TilePlace tile = tile_place(cast, index);
    Octet<X> octets[kOctet];
    load_tile<Packed>(x, cast, tile, octets);
    if (cast.codes != nullptr) {
      cast_rows_of_tile<Width, Packed, Code>(octets, cast, tile, largest, tally);
    }
    if (cast.transposed == nullptr) {
      continue;
    }
    put_column_peaks(octets, peaks);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kBands * kTile; i += kTileThreads) {
      constexpr int kWarps = kTileWarps / kBands;
      const float amax = column_amax<kWarps, X>(peaks, i / kTile * kWarps, i % kTile);
      largest = Largest{}(largest, bits_of(amax));
      cast.columnwise.keep(tile.column + i % kTile, tile.row / Width + i / kTile, amax, cast.rule);
      factors[i] = cast.rule.factor(amax);
    }
    __syncthreads();
    cast_columns_of_tile<!Packed, Code>(
        octets, factors + thread_row() / Width * kTile + thread_group() * kOctet, cast, tile,
        tile_words, tally_columns);
  }
  if (cast.amax != nullptr) {
    raise_amax(cast.amax, float_of(largest), shared);
  }
  if (!Packed && cast.statistics != nullptr) {
    add_to_statistics(cast.statistics, cast.codes != nullptr ? tally : tally_columns, shared);
  }
}

/// Granules of 128 x 128: the codes are the same in both orientations.
template <bool Packed, typename X, typename Code>
__global__ void __launch_bounds__(kTileThreads, (Packed ? 2 : 1))
    squares_kernel(const X* __restrict__ x, GranuleCast cast, TypeTag<Code> /*tag*/) {
  FP8TRAIN_SHARED_ARRAY(Words, tile_memory, kTileWords / 4);
  FP8TRAIN_SHARED_ARRAY(uint32_t, shared, kTileWarps);
  auto* const tile_words = reinterpret_cast<uint32_t*>(tile_memory);
  uint32_t largest = 0;
  Tally tally;
  for (int64_t index = blockIdx.x; index < tiles_of(cast); index += gridDim.x) {
    const TilePlace tile = tile_place(cast, index);
    Octet<X> octets[kOctet];
    load_tile<Packed>(x, cast, tile, octets);
    Peak<X> peak;
#pragma unroll
    for (int i = 0; i < kOctet; ++i) {
      peak.add(octets[i]);
    }
    const float amax =
        float_of(block_reduce<kTileThreads>(bits_of(peak.value()), Largest{}, shared));
    largest = Largest{}(largest, bits_of(amax));
    const float factor = cast.rule.factor(amax);
    if (threadIdx.x == 0 && cast.codes != nullptr) {
      cast.rowwise.keep(tile.row / kTile, tile.column / kTile, amax, cast.rule);
    }
    if (threadIdx.x == 0 && cast.transposed != nullptr) {
      cast.columnwise.keep(tile.column / kTile, tile.row / kTile, amax, cast.rule);
    }
    const auto factor_of = [factor](int /*column*/) { return factor; };
    CodeWords codes[kOctet];
#pragma unroll
    for (int i = 0; i < kOctet; ++i) {
      codes[i] = encode_octet<Code, !Packed>(octets[i], factor_of, tally);
      if (cast.codes != nullptr) {
        store_row<Packed>(cast, tile, i, codes[i]);
      }
    }
    if (cast.transposed != nullptr) {
      put_transposed(codes, tile_words);
      __syncthreads();
      write_transposed(tile_words, cast.transposed, tile.row, tile.column, cast.rows, cast.columns,
                       cast.transposed_aligned);
      __syncthreads();
    }
  }
  if (threadIdx.x == 0 && cast.amax != nullptr) {
    atomicMax(reinterpret_cast<unsigned*>(cast.amax), largest);
  }
  if (!Packed && cast.statistics != nullptr) {
    add_to_statistics(cast.statistics, tally, shared);
  }
}

template <bool Packed, typename X, typename Code>
void cast_as(const Stream& stream, Granularity granularity, const X* x, const GranuleCast& cast,
             TypeTag<Code> tag) {
  const int64_t tiles = ceil_div(cast.rows, kTile) * ceil_div(cast.columns, kTile);
  const LaunchShape by_tile = {blocks_for(stream, tiles, 1), kTileThreads};
  switch (granularity) {
    case Granularity::block_1x128:
      return launch(stream, by_tile, granules_kernel<128, Packed, X, Code>, x, cast, tag);
    case Granularity::block_1x32:
      if constexpr (!std::is_same_v<Code, int8_t>) {  // has no such blocks
        launch(stream, by_tile, granules_kernel<32, Packed, X, Code>, x, cast, tag);
      }
      return;
    case Granularity::block_128x128:
      return launch(stream, by_tile, squares_kernel<Packed, X, Code>, x, cast, tag);
    default:
      return;
  }
}

void quantize_granules(Stream stream, ConstView x, const GranuleQuantizedView& out, float* amax,
                       QuantizeStatistics* statistics) {
  if (statistics != nullptr) {
    reset_statistics(stream, statistics, x.count());
  }
  const int64_t rows = x.shape.rows();
  const GranuleCast cast = {
      .rows = rows,
      .columns = x.shape.back(),
      .codes = out.rowwise.codes.as<uint8_t>(),
      .transposed = out.columnwise.codes.as<uint8_t>(),
      .transposed_aligned = transposed_is_aligned(out.columnwise.codes.data, rows),
      .rowwise = granule_scales(out.rowwise, out.format, out.layout),
      .columnwise = granule_scales(out.columnwise, out.format, out.layout),
      .rule = granule_rule(out.format, x.dtype),
      .amax = amax,
      .statistics = statistics};
  const bool packed = statistics == nullptr && is_aligned(x.data) &&
                      is_aligned(cast.codes, kOctet) && cast.columns % kOctet == 0;
  if (out.format.granularity == Granularity::row) {
    return quantize_rows(stream, x, out.format.dtype, cast, packed);
  }
  with_float_type(x.dtype, [&](auto x_tag) {
    with_code_type(out.format.dtype, [&](auto code_tag) {
      using X = typename decltype(x_tag)::Type;
      if (packed) {
        cast_as<true>(stream, out.format.granularity, x.as<X>(), cast, code_tag);
      } else {
        cast_as<false>(stream, out.format.granularity, x.as<X>(), cast, code_tag);
      }
    });
  });
}

template <typename Code, typename Y>
struct DequantizeGranules {
  const Code* codes;
  GranuleScales scales;
  int64_t columns;
  Y* y;

  template <int N>
  __device__ void run(int64_t i) const {
    const GranuleGrid& grid = scales.grid;
    const float factor = scales.inverse(i / columns / grid.height, i % columns / grid.width);
    if constexpr (N == 1) {
      store_from_float(y + i, decode(codes[i]) * factor);
    } else {
      store_decoded<Code>(codes + i, factor, y + i);
    }
  }
};

void dequantize_granules(Stream stream, const GranuleView& x, const TensorFormat& format,
                         ScaleLayout layout, View y) {
  const int64_t columns = x.codes.shape.back();
  const GranuleScales scales = granule_scales(x, format, layout);
  with_code_type(x.codes.dtype, [&](auto code_tag) {
    with_float_type(y.dtype, [&](auto y_tag) {
      using Code = typename decltype(code_tag)::Type;
      using Y = typename decltype(y_tag)::Type;
      map<kOctet>(stream, y.count(),
                  columns % kOctet == 0 && is_aligned(x.codes.data, kOctet) && is_aligned(y.data),
                  DequantizeGranules<Code, Y>{x.codes.as<Code>(), scales, columns, y.as<Y>()});
    });
  });
}

}  // namespace

void fill_quantize_granules(OpTable& table) {
  table.quantize_granules = quantize_granules;
  table.dequantize_granules = dequantize_granules;
}

}  // namespace fp8train::ops::cuda
