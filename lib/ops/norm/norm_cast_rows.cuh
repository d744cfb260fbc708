#pragma once
// A norm of rows of bf16 and the cast of its result in one pass: a team of threads holds a row in
// registers, and a block the codes of some rows in shared memory, from where it writes them
// transposed. Only for .cu files.

#include "ops/norm/norm_forward.cuh"
#include "ops/norm/norm_one_pass.h"

namespace fp8train::ops::cuda {

/// Where the codes of a norm's result [rows, n] go.
struct NormCodes {
  uint8_t* rowwise;     ///< may be null
  uint8_t* columnwise;  ///< [n, rows], for rows in multiples of kNormStripRows; may be null
  DType type;
};

/// A row of the norm, and its codes in shared memory.
struct StripRow {
  int64_t index;
  RowStatistics statistics;
  uint8_t* strip;  ///< null: only columnwise codes need it
};

/// Writes the result of a team's row and its codes.
template <bool kLayer>
__device__ __forceinline__ void cast_row(const NormForwardRows& call, const Team& team,
                                         const StripRow& row, const Vec8<bf16> (&x)[kForwardVecs],
                                         const NormCodes& codes, CastState<bf16>& state) {
  const int64_t first = row.index * call.n;
#pragma unroll
  for (int v = 0; v < kForwardVecs; ++v) {
    const int column = (team.lane + v * team.size) * kVec8;
    if (column >= call.n) {
      continue;
    }
    const Vec8<bf16> y = normed<kLayer>(call, column, x[v], row.statistics);
    state.amax_bits.add(y);
    if (call.y.data != nullptr) {
      store_vec8<true>(static_cast<bf16*>(call.y.data) + first + column, y, kVec8);
    }
    const CodeWords words = state.encode(y);
    if (codes.rowwise != nullptr) {
      store_codes<true>(codes.rowwise + first + column, words, kVec8);
    }
    if (row.strip != nullptr) {
      store_pack(reinterpret_cast<uint32_t*>(row.strip + column), words);
    }
  }
}

/// Writes the codes of kNormStripRows rows from row `first` on, transposed: a thread has those of
/// four columns at a time. All threads of the block.
__device__ __forceinline__ void write_strip(const uint32_t* strip, int words, int64_t first,
                                            int64_t rows, uint8_t* columnwise) {
  constexpr int kQuads = kNormStripRows / 4;
  static_assert(kQuads == 4);
#pragma unroll 1
  for (int word = static_cast<int>(threadIdx.x); word < words;
       word += static_cast<int>(blockDim.x)) {
    uint32_t codes[kQuads][4];
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        codes[quad][i] = strip[(quad * 4 + i) * words + word];
      }
      transpose_4x4(codes[quad][0], codes[quad][1], codes[quad][2], codes[quad][3]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      store_words(reinterpret_cast<uint32_t*>(columnwise + (int64_t{word} * 4 + i) * rows + first),
                  Words{{codes[0][i], codes[1][i], codes[2][i], codes[3][i]}});
    }
  }
}

/// A block has kNormStripRows rows at a time, of which a team has one.
template <bool kLayer>
__global__ void __launch_bounds__(kNormMostThreads)
    norm_cast_kernel(NormForwardRows call, int team_size, NormCodes codes, CastCall cast) {
  FP8TRAIN_SHARED_ARRAY(float, shared, kNormMostThreads / kWarp);
  FP8TRAIN_SHARED_DYNAMIC(uint8_t, strip);
  const Team team(team_size);
  CastState<bf16> state = {.scale = scale_of_cast(cast),
                           .code_type = codes.type,
                           .counts = false,
                           .amax_bits = {},
                           .cast_counts = {}};
  const int64_t stride = int64_t{gridDim.x} * kNormStripRows;
  for (int64_t first = int64_t{blockIdx.x} * kNormStripRows; first < call.count; first += stride) {
#pragma unroll 1
    for (int base = 0; base < kNormStripRows; base += team.count()) {
      const int at = base + team.index;
      const int64_t row = first + at;
      const bool exists = at < kNormStripRows && row < call.count;
      Vec8<bf16> x[kForwardVecs];
      const RowStatistics statistics = read_row<kLayer>(call, team, row, exists, x, shared);
      if (exists) {
        uint8_t* const of_row =
            codes.columnwise == nullptr ? nullptr : strip + int64_t{at} * call.n;
        cast_row<kLayer>(call, team, {row, statistics, of_row}, x, codes, state);
      }
    }
    if (codes.columnwise != nullptr) {
      __syncthreads();
      write_strip(reinterpret_cast<const uint32_t*>(strip), call.n / 4, first, call.count,
                  codes.columnwise);
      __syncthreads();
    }
  }
  if (cast.amax != nullptr) {
    raise_block_amax(cast.amax, state.amax_bits.value(), shared);
  }
}

}  // namespace fp8train::ops::cuda
