#pragma once
// The cast with one scale per tensor, by tiles of 128 x 128, of values that are stored or that are
// made on the spot: a Source gives eight of them at a time, rounded to their type. One kernel
// writes from them what is wanted of: the values, codes, transposed codes, amax, statistics. Maxima
// and counts are integers, so that no order of blocks changes them. Only for .cu files.
//
// What is wanted is known when a kernel runs, not when it is compiled: the branches are the same
// for all threads and cost less than the instruction cache that a kernel for each case would. Two
// kernels for a source: one reads and writes eight elements at a time, the other takes any width
// and alignment, row by row.
//
// A Source has
//   Value            the type of its values, float, bf16 or f16
//   kParts           matrices of one width that it makes, side by side in the result
//   kRowsAtOnce      rows of a thread whose loads are under way together, 4 or 8 (8 if not said)
//   blocks<Packed, false>()   blocks that a multiprocessor is to hold
//   octet<Packed>(0, row, column, available)           where kParts is 1: eight values
//   octets<Packed>(row, column, available, values)     otherwise: eight of each part

#include "base/math.h"
#include "ops/cast/cast_call.cuh"

namespace fp8train::ops::cuda {

/// Where a matrix [rows, parts * width] goes. Tiles lie within a part; the same tile of all parts
/// is made by one block.
struct CastTarget {
  int64_t rows, width;
  void* y;              ///< the values themselves; may be null
  uint8_t* codes;       ///< may be null
  uint8_t* transposed;  ///< [parts * width, rows]; may be null
  bool transposed_aligned;
  bool e5m2 = false;  ///< codes are e5m2, otherwise e4m3
};

/// The 8 x 8 elements of a thread, and how many of their rows and columns exist.
struct ThreadTile {
  int64_t row, column;
  int rows, columns;
};

__device__ __forceinline__ int up_to_eight(int64_t left) {
  return left >= kOctet ? kOctet : left > 0 ? static_cast<int>(left) : 0;
}

__device__ __forceinline__ ThreadTile thread_tile(const CastTarget& target, int64_t tile_row,
                                                  int64_t tile_column) {
  const int64_t row = tile_row + threadIdx.x / kTileGroups * kOctet;
  const int64_t column = tile_column + threadIdx.x % kTileGroups * kOctet;
  const int columns = up_to_eight(target.width - column);
  return {row, column, columns > 0 ? up_to_eight(target.rows - row) : 0, columns};
}

template <bool Packed, typename Source>
__device__ __forceinline__ void make_octets(const Source& source, int64_t row, int64_t column,
                                            int64_t available,
                                            Octet<typename Source::Value> (&made)[Source::kParts]) {
  if constexpr (Source::kParts == 1) {
    made[0] = source.template octet<Packed>(0, row, column, available);
  } else {
    source.template octets<Packed>(row, column, available, made);
  }
}

template <typename X>
__device__ __forceinline__ CodeWords encode_octet(const Octet<X>& octet, bool e5m2_codes,
                                                  float scale) {
  Tally uncounted;
  const auto scale_of = [scale](int /*column*/) { return scale; };
  return e5m2_codes ? encode_octet<e5m2, false>(octet, scale_of, uncounted)
                    : encode_octet<e4m3, false>(octet, scale_of, uncounted);
}

/// As Tally::add, for eight elements. `limit`: the magnitude above which a value saturates.
template <typename X>
__device__ __forceinline__ void count_octet(const Octet<X>& octet, const CodeWords& codes,
                                            float scale, float limit, Tally& tally) {
#pragma unroll
  for (int i = 0; i < kOctet / 2; ++i) {
    float pair[2];
    octet.pair(i, pair[0], pair[1]);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int at = 2 * i + j;
      const float scaled = pair[j] * scale;
      tally.saturated += scaled > limit || scaled < -limit ? 1U : 0U;
      tally.underflow +=
          (bits_of(pair[j]) & 0x7FFFFFFFU) != 0 && (codes.values[at / 4] >> at % 4 * 8 & 0x7FU) == 0
              ? 1U
              : 0U;
    }
  }
}

/// What a thread carries through its tiles.
template <typename X>
struct CastState {
  float scale;
  float saturation;  ///< magnitude above which a scaled value saturates
  bool counts;
  Peak<X> peak;
  Tally tally;
};

template <typename Source>
consteval int rows_at_once() {
  if constexpr (requires { Source::kRowsAtOnce; }) {
    return Source::kRowsAtOnce;
  } else {
    return kOctet;
  }
}

/// Rows `first` and on, rows_at_once of them, of the thread's elements: values, codes, and the
/// codes' place in the shared tiles. In packs.
template <typename Source>
__device__ __forceinline__ void cast_rows(const Source& source, const CastTarget& target,
                                          const ThreadTile& mine, int first, uint32_t* tiles,
                                          CastState<typename Source::Value>& state) {
  using X = typename Source::Value;
  constexpr int kRows = rows_at_once<Source>();
  const auto available = [&](int i) { return first + i < mine.rows ? kOctet : 0; };
  const int64_t row = mine.row + first;
  const int64_t stride = target.width * Source::kParts;
  Octet<X> made[kRows][Source::kParts];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    make_octets<true>(source, row + i, mine.column, available(i), made[i]);
  }
#pragma unroll
  for (int part = 0; part < Source::kParts; ++part) {
    const int64_t to = row * stride + part * target.width + mine.column;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      state.peak.add(made[i][part]);
      if (target.y != nullptr) {
        store_octet<true>(static_cast<X*>(target.y) + to + i * stride, made[i][part], available(i));
      }
    }
    if (target.codes == nullptr && target.transposed == nullptr) {
      continue;
    }
    CodeWords codes[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      codes[i] = encode_octet(made[i][part], target.e5m2, state.scale);
      if (state.counts) {
        count_octet(made[i][part], codes[i], state.scale, state.saturation, state.tally);
      }
      if (target.codes != nullptr) {
        store_codes<true>(target.codes + to + i * stride, codes[i], available(i));
      }
    }
    if (target.transposed == nullptr) {
      continue;
    }
    if constexpr (kRows == kOctet) {
      put_transposed(codes, tiles + part * kTileWords);
    } else {
      put_transposed_quad(codes, first / kRows, tiles + part * kTileWords);
    }
  }
}

/// All of the thread's elements, of any width and alignment.
template <typename Source>
__device__ __forceinline__ void cast_any(const Source& source, const CastTarget& target,
                                         const ThreadTile& mine, uint32_t* tiles,
                                         CastState<typename Source::Value>& state) {
  using X = typename Source::Value;
  const int64_t stride = target.width * Source::kParts;
#pragma unroll 1
  for (int i = 0; i < mine.rows; ++i) {
    Octet<X> made[Source::kParts];
    make_octets<false>(source, mine.row + i, mine.column, mine.columns, made);
#pragma unroll
    for (int part = 0; part < Source::kParts; ++part) {
      const Octet<X>& octet = made[part];
      const int64_t to = (mine.row + i) * stride + part * target.width + mine.column;
      state.peak.add(octet);
      if (target.y != nullptr) {
        store_octet<false>(static_cast<X*>(target.y) + to, octet, mine.columns);
      }
      if (target.codes == nullptr && target.transposed == nullptr) {
        continue;
      }
      const CodeWords codes = encode_octet(octet, target.e5m2, state.scale);
      if (state.counts) {
        count_octet(octet, codes, state.scale, state.saturation, state.tally);
      }
      if (target.codes != nullptr) {
        store_codes<false>(target.codes + to, codes, mine.columns);
      }
      if (target.transposed != nullptr) {
        auto* const bytes = reinterpret_cast<uint8_t*>(tiles + part * kTileWords);
        const int row = static_cast<int>(threadIdx.x) / kTileGroups * kOctet + i;
        const int column = static_cast<int>(threadIdx.x) % kTileGroups * kOctet;
#pragma unroll
        for (int j = 0; j < kOctet; ++j) {
          bytes[transposed_byte(row, column + j)] =
              static_cast<uint8_t>(codes.values[j / 4] >> j % 4 * 8);
        }
      }
    }
  }
}

/// The same tile of every part.
template <bool Packed, typename Source>
__device__ __forceinline__ void cast_tile(const Source& source, const CastTarget& target,
                                          int64_t tile_row, int64_t tile_column, uint32_t* tiles,
                                          CastState<typename Source::Value>& state) {
  const ThreadTile mine = thread_tile(target, tile_row, tile_column);
  if constexpr (!Packed) {
    cast_any(source, target, mine, tiles, state);
  } else if constexpr (rows_at_once<Source>() == kOctet) {
    cast_rows(source, target, mine, 0, tiles, state);
  } else {
    // The halves of a warp start with different quads of their rows: see put_transposed_quad.
    const int quad = static_cast<int>(threadIdx.x) / kTileGroups % 2;
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
      cast_rows(source, target, mine, (quad ^ i) * 4, tiles, state);
    }
  }
  if (target.transposed == nullptr) {
    return;
  }
  __syncthreads();
#pragma unroll 1
  for (int part = 0; part < Source::kParts; ++part) {
    write_transposed(tiles + part * kTileWords,
                     target.transposed + part * target.width * target.rows, tile_row, tile_column,
                     target.rows, target.width, target.transposed_aligned);
  }
  __syncthreads();
}

/// Packed: what the source reads and y are aligned to 16 bytes, codes to 8, and the width is a
/// multiple of eight.
template <bool Packed, typename Source>
__global__ void __launch_bounds__(kTileThreads, (Source::template blocks<Packed, !Packed>()))
    cast_tiles_kernel(Source source, CastTarget target, CastCall call) {
  FP8TRAIN_SHARED_ARRAY(uint32_t, shared, kTileThreads / kWarp);
  FP8TRAIN_SHARED_ARRAY(Words, tiles, Source::kParts * kTileWords / 4);
  CastState<typename Source::Value> state = {
      .scale = scale_of_cast(call),
      .saturation = target.e5m2 ? kSaturation<e5m2> : kSaturation<e4m3>,
      .counts = call.statistics != nullptr,
      .peak = {},
      .tally = {}};
  const auto tiles_across = static_cast<uint32_t>(ceil_div(target.width, kTile));
  const auto tiles_count = tiles_across * static_cast<uint32_t>(ceil_div(target.rows, kTile));
  for (uint32_t index = blockIdx.x; index < tiles_count; index += gridDim.x) {
    const uint32_t down = index / tiles_across;
    cast_tile<Packed>(source, target, int64_t{down} * kTile,
                      int64_t{index - down * tiles_across} * kTile,
                      reinterpret_cast<uint32_t*>(tiles), state);
  }
  finish_cast<true>(call, state.peak, state.tally, shared);
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
      .transposed_aligned = transposed_is_aligned(out.codes_transposed.data, rows),
      .e5m2 = out.format.dtype == DType::e5m2};
  const bool there = !out.empty() && current.amax == nullptr;
  const CastCall call = {there ? out.scale : nullptr, out.scale_inv, sink.amax, sink.statistics,
                         current};
  const bool packed =
      aligned && width % kOctet == 0 && is_aligned(y) && is_aligned(target.codes, kOctet);
  const int64_t tiles = ceil_div(rows, kTile) * ceil_div(width, kTile);
  launch(stream, {blocks_for(stream, tiles, 1), kTileThreads},
         packed ? cast_tiles_kernel<true, Source> : cast_tiles_kernel<false, Source>, source,
         target, call);
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
