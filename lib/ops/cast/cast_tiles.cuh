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
//   vec<Packed>(0, row, column, available)           where kParts is 1: eight values
//   vecs<Packed>(row, column, available, values)     otherwise: eight of each part

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
  DType code_type = Fp8Types::kTypes[0];
};

/// The 8 x 8 elements of a thread, and how many of their rows and columns exist.
struct ThreadTile {
  int64_t row, column;
  int rows, columns;
};

__device__ __forceinline__ int up_to_eight(int64_t left) {
  return left >= kVec8 ? kVec8 : left > 0 ? static_cast<int>(left) : 0;
}

__device__ __forceinline__ ThreadTile thread_tile(const CastTarget& target, int64_t tile_row,
                                                  int64_t tile_column) {
  const int64_t row = tile_row + threadIdx.x / kTileGroups * kVec8;
  const int64_t column = tile_column + threadIdx.x % kTileGroups * kVec8;
  const int columns = up_to_eight(target.width - column);
  return {row, column, columns > 0 ? up_to_eight(target.rows - row) : 0, columns};
}

template <bool Packed, typename Source>
__device__ __forceinline__ void make_vec8s(const Source& source, int64_t row, int64_t column,
                                           int64_t available,
                                           Vec8<typename Source::Value> (&made)[Source::kParts]) {
  if constexpr (Source::kParts == 1) {
    made[0] = source.template vec<Packed>(0, row, column, available);
  } else {
    source.template vecs<Packed>(row, column, available, made);
  }
}

template <typename X>
__device__ __forceinline__ CodeWords encode_vec8(const Vec8<X>& vec, DType code_type, float scale) {
  return encode_fp8_vec8(vec, code_type, [scale](int /*column*/) { return scale; });
}

/// As CastCounts::add, for eight elements. `limit`: the magnitude above which a value saturates.
template <typename X>
__device__ __forceinline__ void count_vec8(const Vec8<X>& vec, const CodeWords& codes, float scale,
                                           float limit, CastCounts& cast_counts) {
#pragma unroll
  for (int i = 0; i < kVec8 / 2; ++i) {
    float pair[2];
    vec.pair(i, pair[0], pair[1]);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int at = 2 * i + j;
      const float scaled = pair[j] * scale;
      cast_counts.saturated += scaled > limit || scaled < -limit ? 1U : 0U;
      cast_counts.underflow +=
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
  AmaxBits<X> amax_bits;
  CastCounts cast_counts;
};

template <typename Source>
consteval int rows_at_once() {
  if constexpr (requires { Source::kRowsAtOnce; }) {
    return Source::kRowsAtOnce;
  } else {
    return kVec8;
  }
}

/// Rows `first` and on, rows_at_once of them, of the thread's elements: values, codes, and the
/// codes' position in the shared tiles. In packs.
template <typename Source>
__device__ __forceinline__ void cast_rows(const Source& source, const CastTarget& target,
                                          const ThreadTile& mine, int first, uint32_t* tiles,
                                          CastState<typename Source::Value>& state) {
  using X = typename Source::Value;
  constexpr int kRows = rows_at_once<Source>();
  const auto available = [&](int i) { return first + i < mine.rows ? kVec8 : 0; };
  const int64_t row = mine.row + first;
  const int64_t stride = target.width * Source::kParts;
  Vec8<X> made[kRows][Source::kParts];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    make_vec8s<true>(source, row + i, mine.column, available(i), made[i]);
  }
#pragma unroll
  for (int part = 0; part < Source::kParts; ++part) {
    const int64_t to = row * stride + part * target.width + mine.column;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      state.amax_bits.add(made[i][part]);
      if (target.y != nullptr) {
        store_vec8<true>(static_cast<X*>(target.y) + to + i * stride, made[i][part], available(i));
      }
    }
    if (target.codes == nullptr && target.transposed == nullptr) {
      continue;
    }
    CodeWords codes[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      codes[i] = encode_vec8(made[i][part], target.code_type, state.scale);
      if (state.counts) {
        count_vec8(made[i][part], codes[i], state.scale, state.saturation, state.cast_counts);
      }
      if (target.codes != nullptr) {
        store_codes<true>(target.codes + to + i * stride, codes[i], available(i));
      }
    }
    if (target.transposed == nullptr) {
      continue;
    }
    if constexpr (kRows == kVec8) {
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
    Vec8<X> made[Source::kParts];
    make_vec8s<false>(source, mine.row + i, mine.column, mine.columns, made);
#pragma unroll
    for (int part = 0; part < Source::kParts; ++part) {
      const Vec8<X>& vec = made[part];
      const int64_t to = (mine.row + i) * stride + part * target.width + mine.column;
      state.amax_bits.add(vec);
      if (target.y != nullptr) {
        store_vec8<false>(static_cast<X*>(target.y) + to, vec, mine.columns);
      }
      if (target.codes == nullptr && target.transposed == nullptr) {
        continue;
      }
      const CodeWords codes = encode_vec8(vec, target.code_type, state.scale);
      if (state.counts) {
        count_vec8(vec, codes, state.scale, state.saturation, state.cast_counts);
      }
      if (target.codes != nullptr) {
        store_codes<false>(target.codes + to, codes, mine.columns);
      }
      if (target.transposed != nullptr) {
        auto* const bytes = reinterpret_cast<uint8_t*>(tiles + part * kTileWords);
        const int row = static_cast<int>(threadIdx.x) / kTileGroups * kVec8 + i;
        const int column = static_cast<int>(threadIdx.x) % kTileGroups * kVec8;
#pragma unroll
        for (int j = 0; j < kVec8; ++j) {
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
  } else if constexpr (rows_at_once<Source>() == kVec8) {
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
  CastState<typename Source::Value> state = {.scale = scale_of_cast(call),
                                             .saturation = fp8_saturation(target.code_type),
                                             .counts = call.statistics != nullptr,
                                             .amax_bits = {},
                                             .cast_counts = {}};
  const auto tiles_across = static_cast<uint32_t>(ceil_div(target.width, kTile));
  const auto tiles_count = tiles_across * static_cast<uint32_t>(ceil_div(target.rows, kTile));
  for (uint32_t index = blockIdx.x; index < tiles_count; index += gridDim.x) {
    const uint32_t down = index / tiles_across;
    cast_tile<Packed>(source, target, int64_t{down} * kTile,
                      int64_t{index - down * tiles_across} * kTile,
                      reinterpret_cast<uint32_t*>(tiles), state);
  }
  finish_cast<true>(call, state.amax_bits, state.cast_counts, shared);
}

/// Host: casts what the source gives, [rows, kParts * width], as `sink` says, and writes it to `y`
/// unless that is null. `aligned`: the source can be read in packs. `current`: the scale follows.
template <typename Source>
void cast_tiles(const Stream& stream, const Source& source, int64_t rows, int64_t width, void* y,
                const QuantizeSink& sink, bool aligned, const CurrentScale& current = {}) {
  const QuantizedTensor& out = sink.out;
  if (sink.statistics != nullptr) {
    reset_statistics(stream, sink.statistics, rows * width * Source::kParts);
  }
  const CastTarget target = {
      .rows = rows,
      .width = width,
      .y = y,
      .codes = out.rowwise.codes.as<uint8_t>(),
      .transposed = out.columnwise.codes.as<uint8_t>(),
      .transposed_aligned = transposed_is_aligned(out.columnwise.codes.data, rows),
      .code_type = out.empty() ? Fp8Types::kTypes[0] : out.format.dtype};
  Fp8Types::check(target.code_type);
  const bool there = !out.empty() && current.amax == nullptr;
  const CastCall call = {there ? out.tensor_scale : nullptr, out.tensor_scale_inv, sink.amax,
                         sink.statistics, current};
  const bool packed =
      aligned && width % kVec8 == 0 && is_aligned(y) && is_aligned(target.codes, kVec8);
  const int64_t tiles = ceil_div(rows, kTile) * ceil_div(width, kTile);
  launch(stream, {cast_blocks(stream, tiles, 1), kTileThreads},
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
  __device__ __forceinline__ Vec8<X> vec(int /*part*/, int64_t row, int64_t column,
                                         int64_t available) const {
    return load_vec8<Packed>(x + row * width + column, available);
  }
};

/// Blocks that a multiprocessor is to hold where values are made on the spot, which takes more
/// registers than loading them.
template <bool Packed, bool Counted, typename X>
constexpr int kMadeTileBlocks = Packed && !Counted && sizeof(X) == 2 ? 2 : 1;

}  // namespace fp8train::ops::cuda
