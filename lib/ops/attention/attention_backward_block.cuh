#pragma once
// The blocks of attention's backward: their shapes, their shared memory, and the scores that both
// of their kernels compute again. A block owns rows of one side, keys or queries, and streams tiles
// of the other. Only for .cu files.

#include "ops/attention/attention_tiles.cuh"

namespace fp8train::ops::cuda {

/// Shapes of a block that owns keys, or queries. kRowTiles: own rows per warp / 16. kSplit: warps
/// that share the same rows, each with a part of the columns of the gradients; they repeat the
/// scores. kColumns: rows of a streamed tile, the columns of a score tile. Chosen so that a
/// thread's sums, twice as many where the block owns keys, leave registers for the operands of the
/// products.
template <typename T, int kDim, bool kOwnsKeys>
struct BackwardTiles {
  static constexpr bool kWide = kOwnsKeys ? kDim == 64 : kDim == 128;
  static constexpr int kRowTiles = kOnTensorCores<T> && kDim == 64 && !kOwnsKeys ? 2 : 1;
  static constexpr int kSplit = kOnTensorCores<T> ? (kDim == 256 ? 2 : 1) : kDim / 64;
  static constexpr int kColumns = kOnTensorCores<T> ? (kWide ? 64 : 32) : (kDim == 64 ? 32 : 16);
  static constexpr int kRowWarps = 4 / kSplit;
  static constexpr int kThreads = kRowWarps * kSplit * kWarp;
  static constexpr int kWarpRows = kRowTiles * 16;
  static constexpr int kRows = kRowWarps * kWarpRows;
  static constexpr int kOutput = kDim / kSplit;  // columns of the gradients of a warp
  static constexpr int kStride = kRowStride<T, kDim>;
  static constexpr int kStaging = kStagingFloats<T, kRowTiles, kColumns>;
  static constexpr int kOwn = kRows * kStride;          // elements of one of the block's own tiles
  static constexpr int kStreamed = kColumns * kStride;  // of a streamed one

  using Scores = float[kRowTiles][kColumns / 8][4];
  using Gradient = float[kRowTiles][kOutput / 8][4];

  /// Two own tiles; two stages of the first streamed tile and one of the second; log_sum_exp and
  /// delta of streamed queries, in two stages; staging.
  static constexpr int kSharedBytes =
      (2 * kOwn + 3 * kStreamed) * static_cast<int>(sizeof(T)) +
      (4 * kColumns + kRowWarps * kSplit * kStaging) * static_cast<int>(sizeof(float));
  static_assert(kSharedBytes <= kSharedLimit);
};

/// Rows of one head that a block owns: positions `first` and on of sequence b.
struct OwnRows {
  int64_t b, head;
  int first, length;  ///< length: of the sequence
};

/// Where things lie in a block's shared memory, and what the thread's warp has of them.
template <typename T, typename Tiles>
struct BackwardBlock {
  T* own[2];
  T* first_streamed;  // two stages
  T* second_streamed;
  float* log_sum_exp;  // two stages, times log2 e
  float* delta;        // two stages
  float* staging;      // the warp's
  int warp_row;        // of the own tiles
  int warp_column;     // of the gradients

  __device__ __forceinline__ explicit BackwardBlock(T* shared) {
    const int warp = warp_index();
    own[0] = shared;
    own[1] = shared + Tiles::kOwn;
    first_streamed = own[1] + Tiles::kOwn;
    second_streamed = first_streamed + 2 * Tiles::kStreamed;
    log_sum_exp = reinterpret_cast<float*>(second_streamed + Tiles::kStreamed);
    delta = log_sum_exp + 2 * Tiles::kColumns;
    staging = delta + 2 * Tiles::kColumns + warp * Tiles::kStaging;
    warp_row = warp / Tiles::kSplit * Tiles::kWarpRows;
    warp_column = warp % Tiles::kSplit * Tiles::kOutput;
  }

  __device__ __forceinline__ T* own_rows(int i) const { return own[i] + warp_row * Tiles::kStride; }

  /// Starts the copy of the block's own rows into own tile i.
  template <int kDim>
  __device__ __forceinline__ void load_own(int i, const HeadRows<const T>& rows,
                                           const OwnRows& at) const {
    load_tile<kDim, Tiles::kRows, Tiles::kThreads>(own[i], rows, rows.at(at.b, at.first, at.head),
                                                   at.length - at.first);
  }

  /// Writes the warps' gradients of the block's own rows by way of own tile i, which no thread may
  /// still read.
  template <int kDim>
  __device__ __forceinline__ void store_own(int i, const typename Tiles::Gradient& gradient,
                                            const HeadRows<T>& rows, const OwnRows& at) const {
    result_to_tile<kDim>(gradient, own_rows(i) + warp_column);
    __syncthreads();
    store_tile<kDim, Tiles::kRows, Tiles::kThreads>(own[i], rows, rows.at(at.b, at.first, at.head),
                                                    at.length - at.first);
  }
};

/// The statistics of a score's query that the score's gradient needs.
struct QueryStatistics {
  float log_sum_exp;  ///< of the forward pass, times log2 e
  float delta;        ///< as delta_kernel computes it
};

/// The warp's own rows against a streamed tile.
template <typename Tiles>
struct ScoreTile {
  typename Tiles::Scores probabilities;  ///< 0 where masked
  typename Tiles::Scores gradients;      ///< of the scores, without the scale

  /// statistics_of(at): QueryStatistics of a score; masked(at): whether its key is hidden.
  template <int kDim, typename T, typename StatisticsOf, typename Masked>
  __device__ __forceinline__ void compute(const BackwardBlock<T, Tiles>& block, const T* streamed,
                                          float scale, StatisticsOf statistics_of, Masked masked) {
    set_zero(probabilities);
    for_each_value(gradients,
                   [&](float& value, TileElement at) { value = -statistics_of(at).delta; });
    add_product_of_rows<kDim>(probabilities, block.own_rows(0), streamed);
    add_product_of_rows<kDim>(gradients, block.own_rows(1), block.second_streamed);
    for_each_pair(probabilities, gradients, [&](float& value, float& gradient, TileElement at) {
      const bool hidden = masked(at);
      value =
          hidden ? 0.0F : exp2_fast(fmaf(value, scale * kLog2E, -statistics_of(at).log_sum_exp));
      gradient = hidden ? 0.0F : value * gradient;
    });
  }
};

}  // namespace fp8train::ops::cuda
