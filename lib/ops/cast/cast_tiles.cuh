#pragma once
// The cast with one scale per tensor, by tiles of 128 x 128, of values that are stored or that are
// made on the spot: a Source gives eight of them at a time, rounded to their type. One kernel
// writes what a caller asks for: the values, codes, transposed codes, amax, statistics. Maxima and
// counts are integers, so that no order of blocks changes them. Only for .cu files.
//
// The outputs are known when a kernel runs, not when it is compiled: the branches are the same
// for all threads and cost less than the instruction cache that a kernel for each case would. Two
// kernels for a source: one reads and writes eight elements at a time, the other takes any width
// and alignment, row by row.
//
// A Source has
//   Value            the type of its values, float, bf16 or f16
//   kParts           matrices of one width that it makes, side by side in the result
//   kRowsAtOnce      rows of a thread whose loads are under way together, 4 or 8 (8 if not said)
//   kBlocks          blocks of the first kernel that a multiprocessor is to hold
//   vec<Packed>(row, column, available)            where kParts is 1: eight values
//   vecs<Packed>(row, column, available, values)   otherwise: eight of each part

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

__device__ __forceinline__ ThreadTile thread_tile(const CastTarget& target, TileLocation tile) {
  const int64_t row = tile.row + thread_row();
  const int64_t column = tile.column + thread_group() * kVec8;
  const int columns = up_to_eight(target.width - column);
  return {row, column, columns > 0 ? up_to_eight(target.rows - row) : 0, columns};
}

/// Eight values of each part from (row, column) on.
template <bool Packed, typename Source>
__device__ __forceinline__ void make_vec8s(const Source& source, int64_t row, int64_t column,
                                           int64_t available,
                                           Vec8<typename Source::Value> (&made)[Source::kParts]) {
  if constexpr (Source::kParts == 1) {
    made[0] = source.template vec<Packed>(row, column, available);
  } else {
    source.template vecs<Packed>(row, column, available, made);
  }
}

/// The state that a thread carries through its tiles.
template <typename X>
struct CastState {
  float scale;
  DType code_type;
  bool counts;
  AmaxBits<X> amax_bits;
  CastCounts cast_counts;

  __device__ __forceinline__ CodeWords encode(const Vec8<X>& vec) {
    const float factor = scale;
    return encode_vec8(
        vec, code_type, [factor](int /*i*/) { return factor; }, counts, cast_counts);
  }
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
      codes[i] = state.encode(made[i][part]);
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
      const CodeWords codes = state.encode(vec);
      if (target.codes != nullptr) {
        store_codes<false>(target.codes + to, codes, mine.columns);
      }
      if (target.transposed != nullptr) {
        auto* const bytes = reinterpret_cast<uint8_t*>(tiles + part * kTileWords);
#pragma unroll
        for (int j = 0; j < kVec8; ++j) {
          bytes[transposed_byte(thread_row() + i, thread_group() * kVec8 + j)] =
              static_cast<uint8_t>(codes.values[j / 4] >> j % 4 * 8);
        }
      }
    }
  }
}

/// Casts the tile at the same location in every part.
template <bool Packed, typename Source>
__device__ __forceinline__ void cast_tile(const Source& source, const CastTarget& target,
                                          TileLocation tile, uint32_t* tiles,
                                          CastState<typename Source::Value>& state) {
  const ThreadTile mine = thread_tile(target, tile);
  if constexpr (!Packed) {
    cast_any(source, target, mine, tiles, state);
  } else if constexpr (rows_at_once<Source>() == kVec8) {
    cast_rows(source, target, mine, 0, tiles, state);
  } else {
    // The halves of a warp start with different quads of their rows: see put_transposed_quad.
    const int quad = thread_row() / kVec8 % 2;
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
    write_transposed(tiles + part * kTileWords, tile,
                     {target.transposed + part * target.width * target.rows, target.rows,
                      target.width, target.transposed_aligned});
  }
  __syncthreads();
}

/// Packed: what the source reads and y are aligned to 16 bytes, codes to 8, and the width is a
/// multiple of eight.
template <bool Packed, typename Source>
__global__ void __launch_bounds__(kTileThreads, Packed ? Source::kBlocks : 1)
    cast_tiles_kernel(Source source, CastTarget target, CastCall call) {
  FP8TRAIN_SHARED_ARRAY(uint32_t, shared, kTileThreads / kWarp);
  FP8TRAIN_SHARED_ARRAY(Words, tiles, Source::kParts * kTileWords / 4);
  CastState<typename Source::Value> state = {.scale = scale_of_cast(call),
                                             .code_type = target.code_type,
                                             .counts = call.statistics != nullptr,
                                             .amax_bits = {},
                                             .cast_counts = {}};
  const auto tiles_across = static_cast<uint32_t>(ceil_div(target.width, kTile));
  const auto tiles_count = tiles_across * static_cast<uint32_t>(ceil_div(target.rows, kTile));
  for (uint32_t index = blockIdx.x; index < tiles_count; index += gridDim.x) {
    const uint32_t down = index / tiles_across;
    const TileLocation tile = {int64_t{down} * kTile, int64_t{index - down * tiles_across} * kTile};
    cast_tile<Packed>(source, target, tile, reinterpret_cast<uint32_t*>(tiles), state);
  }
  finish_cast<true>(call, state.amax_bits, state.cast_counts, shared);
}

/// Host: what becomes of the values [rows, kParts * width] of a source.
struct TileCast {
  int64_t rows, width;
  QuantizeSink sink;
  bool aligned;       ///< the source can be read in packs
  void* y = nullptr;  ///< where the values go; null: nowhere
  CurrentScale current = {};
};

/// Host: casts the values of a source, and writes them too where `call` says so.
template <typename Source>
void cast_tiles(const Stream& stream, const Source& source, const TileCast& call) {
  const QuantizedTensor& out = call.sink.out;
  if (call.sink.statistics != nullptr) {
    reset_statistics(stream, call.sink.statistics, call.rows * call.width * Source::kParts);
  }
  const CastTarget target = {
      .rows = call.rows,
      .width = call.width,
      .y = call.y,
      .codes = out.rowwise.codes.as<uint8_t>(),
      .transposed = out.columnwise.codes.as<uint8_t>(),
      .transposed_aligned = transposed_is_aligned(out.columnwise.codes.data, call.rows),
      .code_type = out.empty() ? Fp8Types::kTypes[0] : out.format().dtype};
  Fp8Types::check(target.code_type);
  const bool packed = call.aligned && call.width % kVec8 == 0 && is_aligned(call.y) &&
                      is_aligned(target.codes, kVec8);
  launch(stream, {cast_blocks(stream, tiles_of(call.rows, call.width), 1), kTileThreads},
         packed ? cast_tiles_kernel<true, Source> : cast_tiles_kernel<false, Source>, source,
         target, cast_call(call.sink, call.current));
}

/// Values that lie in memory.
template <typename X>
struct StoredSource {
  using Value = X;
  static constexpr int kParts = 1;
  static constexpr int kBlocks = kTileBlocks<X>;
  const X* __restrict__ x;
  int64_t width;

  template <bool Packed>
  __device__ __forceinline__ Vec8<X> vec(int64_t row, int64_t column, int64_t available) const {
    return load_vec8<Packed>(x + row * width + column, available);
  }
};

}  // namespace fp8train::ops::cuda
