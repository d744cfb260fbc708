// Causal attention with grouped queries, without cuDNN: tiled over keys with a running soft-max
// (Milakov and Gimelshein 2018; Dao et al. 2022), in powers of two. One block per (sequence, head,
// block of queries); each warp owns some of its rows and walks all tiles of keys that they see,
// while the next tile is copied.

#include "numeric/math.h"
#include "ops/attention/attention_kernels_cuda.h"
#include "ops/attention/attention_tiles.cuh"

namespace fp8train::ops::cuda {
namespace {

/// Rows of queries per warp / 16, warps, and keys of a tile, so that what a block holds stays
/// within 255 registers a thread and kSharedLimit. Two row tiles per warp halve the reads of shared
/// memory per product, which bound it on sm_90.
template <typename T, int kDim>
struct ForwardTiles {
  static constexpr int kRowTiles = kOnTensorCores<T> && kDim <= 128 ? 2 : 1;
  static constexpr int kWarps = !kOnTensorCores<T> && kDim == 256 ? 2 : 4;
  static constexpr int kKeys = kOnTensorCores<T> ? (kDim == 64 ? 64 : 32) : 2048 / kDim;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kWarpRows = kRowTiles * 16;
  static constexpr int kRows = kWarps * kWarpRows;
  static constexpr int kStaging = kStagingFloats<T, kRowTiles, kKeys>;
  static constexpr int kTileElements = kKeys * kRowStride<T, kDim>;
  /// Queries, then two stages of keys and values, then staging.
  static constexpr int kSharedBytes =
      (kRows * kRowStride<T, kDim> + 4 * kTileElements) * static_cast<int>(sizeof(T)) +
      kWarps * kStaging * static_cast<int>(sizeof(float));
  static_assert(kSharedBytes <= kSharedLimit);
};

/// The running soft-max of a warp's rows: each lane keeps it for its rows m * 16 + 8 h + g at [2 m
/// + h]; `sum` only over the lane's own columns, not yet over the four lanes of a row.
template <int kRowTiles>
struct RunningSoftMax {
  float max[kRowTiles * 2];
  float sum[kRowTiles * 2];

  __device__ __forceinline__ RunningSoftMax() {
#pragma unroll
    for (int row = 0; row < kRowTiles * 2; ++row) {
      max[row] = -__builtin_inff();
      sum[row] = 0.0F;
    }
  }

  /// Turns scores (in powers of two) into probabilities relative to the raised maximum; what was
  /// summed before shrinks by as much.
  template <int kKeyTiles, int kOutputTiles>
  __device__ __forceinline__ void add(float (&scores)[kRowTiles][kKeyTiles][4],
                                      float (&output)[kRowTiles][kOutputTiles][4]) {
#pragma unroll
    for (int row = 0; row < kRowTiles * 2; ++row) {
      const int first = row % 2 * 2;
      float top = max[row];
#pragma unroll
      for (auto& tile : scores[row / 2]) {
        top = fmaxf(top, fmaxf(tile[first], tile[first + 1]));
      }
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
      const float factor = exp2_fast(max[row] - top);
      max[row] = top;
      float added = 0.0F;
#pragma unroll
      for (auto& tile : scores[row / 2]) {
        tile[first] = exp2_fast(tile[first] - top);
        tile[first + 1] = exp2_fast(tile[first + 1] - top);
        added += tile[first] + tile[first + 1];
      }
      sum[row] = fmaf(sum[row], factor, added);
#pragma unroll
      for (auto& tile : output[row / 2]) {
        tile[first] *= factor;
        tile[first + 1] *= factor;
      }
    }
  }

  /// Divides by the sums, which every lane of a row then has.
  template <int kOutputTiles>
  __device__ __forceinline__ void finish(float (&output)[kRowTiles][kOutputTiles][4]) {
#pragma unroll
    for (int row = 0; row < kRowTiles * 2; ++row) {
      sum[row] += __shfl_xor_sync(kAllLanes, sum[row], 1);
      sum[row] += __shfl_xor_sync(kAllLanes, sum[row], 2);
      const float factor = 1.0F / sum[row];
#pragma unroll
      for (auto& tile : output[row / 2]) {
        tile[row % 2 * 2] *= factor;
        tile[row % 2 * 2 + 1] *= factor;
      }
    }
  }
};

/// The arguments of the kernel.
template <typename T>
struct ForwardCall {
  AttentionShape shape;
  HeadRows<const T> q, k, v;
  HeadRows<T> out;
  float* log_sum_exp;  // null: not stored
  QueryStarts document_starts;
};

/// The queries of a warp.
template <typename T, int kRowTiles>
struct WarpQueries {
  const T* rows;  ///< in shared memory
  int position;   ///< of the first among the keys
  bool has_documents;
  OwnDocuments<kRowTiles * 2> documents;
};

/// A tile of keys in shared memory.
template <typename T>
struct KeyTile {
  const T* rows;
  int first;  ///< position of the first key
};

/// Scores of a warp's queries and a tile of keys, in powers of two, -infinity where masked.
template <int kDim, typename T, int kRowTiles, int kKeyTiles>
__device__ __forceinline__ void score_tile(float (&scores)[kRowTiles][kKeyTiles][4],
                                           const WarpQueries<T, kRowTiles>& queries,
                                           const KeyTile<T>& keys, float scale) {
  set_zero(scores);
  add_product_of_rows<kDim>(scores, queries.rows, keys.rows);
  const int shift = keys.first - queries.position;
  const bool masked = shift + kKeyTiles * 8 - 1 > 0;
  for_each_value(scores, [&](float& score, TileElement at) {
    score = masked && at.column + shift > at.row ? -__builtin_inff() : score * scale;
  });
  if (queries.has_documents) {
    for_each_value(scores, [&](float& score, TileElement at) {
      const int begin = queries.documents.begin[at.own_row];
      score = keys.first + at.column < begin ? kHiddenScore : score;
    });
  }
}

/// Stores the logarithms of a warp's sums, for the backward pass.
template <typename T, int kRowTiles>
__device__ __forceinline__ void store_log_sum_exp(const ForwardCall<T>& call,
                                                  const QueryBlock& block, int own_first,
                                                  const RunningSoftMax<kRowTiles>& soft_max) {
  float* stored =
      call.log_sum_exp + (block.b * call.shape.heads + block.head) * call.shape.query_length;
  for (int row = 0; row < kRowTiles * 2; ++row) {
    const int query = own_first + row * 8 + lane_index() / 4;
    if (query < static_cast<int>(call.shape.query_length)) {
      stored[query] = soft_max.max[row] * kLn2 + log_f32(soft_max.sum[row]);
    }
  }
}

/// A block has kRows queries of one head.
template <typename T, int kDim>
__global__ void __launch_bounds__(ForwardTiles<T, kDim>::kThreads)
    forward_kernel(ForwardCall<T> call) {
  using Tiles = ForwardTiles<T, kDim>;
  FP8TRAIN_SHARED_DYNAMIC(T, queries);
  T* const keys = queries + Tiles::kRows * kRowStride<T, kDim>;
  T* const values = keys + 2 * Tiles::kTileElements;
  const int warp = warp_index();
  float* const staging =
      reinterpret_cast<float*>(values + 2 * Tiles::kTileElements) + warp * Tiles::kStaging;

  const int queries_end = static_cast<int>(call.shape.query_length);
  const int history = static_cast<int>(call.shape.key_length) - queries_end;
  const QueryBlock block = query_block<Tiles::kRows>(call.shape, history);
  const auto load_keys = [&](int key, int stage) {
    load_visible<kDim, Tiles::kKeys, Tiles::kThreads>(keys + stage * Tiles::kTileElements, call.k,
                                                      block, key);
    load_visible<kDim, Tiles::kKeys, Tiles::kThreads>(values + stage * Tiles::kTileElements, call.v,
                                                      block, key);
  };
  load_tile<kDim, Tiles::kRows, Tiles::kThreads>(
      queries, call.q, call.q.at(block.b, block.first, block.head), queries_end - block.first);
  const int32_t* const starts = call.document_starts.of(block.b);
  const int first_key = first_key_of<Tiles::kKeys>(starts, block.first);
  load_keys(first_key, 0);

  T* const own_queries = queries + warp * Tiles::kWarpRows * kRowStride<T, kDim>;
  const int own_first = block.first + warp * Tiles::kWarpRows;
  const bool used = own_first < queries_end;
  const float scale = call.shape.scale * kLog2E;
  const WarpQueries<T, Tiles::kRowTiles> own = {
      own_queries, history + own_first, starts != nullptr,
      OwnDocuments<Tiles::kRowTiles * 2>(starts, own_first, queries_end)};
  RunningSoftMax<Tiles::kRowTiles> soft_max;
  float output[Tiles::kRowTiles][kDim / 8][4];
  set_zero(output);
  int stage = 0;
  for (int key = first_key; key < block.visible; key += Tiles::kKeys, stage ^= 1) {
    wait_for_copies();
    __syncthreads();  // this tile is here, and nobody reads the other stage any more
    if (key + Tiles::kKeys < block.visible) {
      load_keys(key + Tiles::kKeys, stage ^ 1);
    }
    if (used && key < own.position + Tiles::kWarpRows) {
      float scores[Tiles::kRowTiles][Tiles::kKeys / 8][4];
      score_tile<kDim>(scores, own, KeyTile<T>{keys + stage * Tiles::kTileElements, key}, scale);
      soft_max.add(scores, output);
      add_product<kDim>(output, scores, values + stage * Tiles::kTileElements, staging);
    }
  }

  if (used) {
    soft_max.finish(output);
    result_to_tile<kDim>(output, own_queries);
  }
  __syncthreads();
  store_tile<kDim, Tiles::kRows, Tiles::kThreads>(
      queries, call.out, call.out.at(block.b, block.first, block.head), queries_end - block.first);
  if (call.log_sum_exp != nullptr && used && lane_index() % 4 == 0) {
    store_log_sum_exp(call, block, own_first, soft_max);
  }
}

}  // namespace

void own_attention_forward(Stream stream, const AttentionForward& call) {
  with_float_type(call.q.dtype, [&]<typename T>(TypeTag<T>) {
    with_head_dim(call.shape.head_dim, [&](auto dim) {
      constexpr int kDim = decltype(dim)::kDim;
      using Tiles = ForwardTiles<T, kDim>;
      const ForwardCall<T> arguments = {call.shape,
                                        head_rows<const T>(call.q, call.shape.head_dim),
                                        head_rows<const T>(call.k, call.shape.head_dim),
                                        head_rows<const T>(call.v, call.shape.head_dim),
                                        head_rows<T>(call.out, call.shape.head_dim),
                                        call.log_sum_exp.as<float>(),
                                        QueryStarts(call.document_starts, call.shape)};
      const dim3 grid(static_cast<unsigned>(ceil_div(call.shape.query_length, Tiles::kRows)),
                      static_cast<unsigned>(call.shape.heads),
                      static_cast<unsigned>(call.shape.batch));
      launch(stream, {grid, Tiles::kThreads, Tiles::kSharedBytes}, forward_kernel<T, kDim>,
             arguments);
    });
  });
}

}  // namespace fp8train::ops::cuda
