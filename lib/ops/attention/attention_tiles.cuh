#pragma once
// Code that the attention kernels share: tiles of heads in shared memory and products of them by
// one warp.
//
// A tile is [rows][kDim] with kDim = 64, 128 or 256, zeros beyond the head and beyond the sequence;
// a row is 16 bytes longer than that, so that 8 rows start in 8 different groups of banks. The
// result of a product stays in registers as tiles of 16 x 8 in the layout of mma.cuh: lane 4 g + t
// holds rows g and g + 8, columns 2t and 2t + 1 of each. bf16 and fp16 are multiplied by tensor
// cores, fp32 by fused multiply-adds from shared memory into the same layout.

#include <type_traits>

#include "ops/attention/attention.h"
#include "ops/support/convert.cuh"
#include "ops/support/kernel_support.cuh"
#include "ops/support/mma.cuh"

namespace fp8train::ops::cuda {

constexpr float kLn2 = 0.693147181F;
constexpr int kSharedLimit = 99 << 10;  // bytes that a block may have on sm_89

template <typename T>
constexpr int kPackOf = 16 / static_cast<int>(sizeof(T));
template <typename T, int kDim>
constexpr int kRowStride = kDim + kPackOf<T>;
template <typename T>
constexpr bool kOnTensorCores = !std::is_same_v<std::remove_const_t<T>, float>;

/// A HeadsView of known type. `aligned`: every row of a head starts at, and is a multiple of, 16
/// bytes.
template <typename T>
struct HeadRows {
  T* data;
  int64_t row_stride;
  int64_t length_capacity;
  int head_dim;
  bool aligned;

  __device__ __forceinline__ T* at(int64_t b, int64_t position, int64_t head) const {
    return data + (b * length_capacity + position) * row_stride + head * head_dim;
  }
};

/// Host: a view of heads of `head_dim` elements as kernels index it.
template <typename T>
HeadRows<T> head_rows(const HeadsView& view, int64_t head_dim) {
  constexpr int64_t kPack = kPackOf<T>;
  return {static_cast<T*>(view.data), view.row_stride, view.length_capacity,
          static_cast<int>(head_dim),
          is_aligned(view.data) && view.row_stride % kPack == 0 && head_dim % kPack == 0};
}

/// The score of a key of another document. Finite: a tile may hold nothing else for a query, and
/// what it then adds is multiplied by 0 when the query's own document begins.
constexpr float kHiddenScore = -3e38F;

/// Where the documents begin that a lane's own rows belong to, those from `first` on; 0 where a
/// sequence is one document (`starts` null). `starts`: of the sequence.
template <int kOwnRows>
struct OwnDocuments {
  int begin[kOwnRows];

  __device__ __forceinline__ OwnDocuments(const int32_t* starts, int first, int length) {
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      const int row = first + i * 8 + lane_index() / 4;
      begin[i] = starts == nullptr || row >= length ? 0 : starts[row];
    }
  }
};

/// Where the documents of queries begin.
struct QueryStarts {
  const int32_t* of_first;  ///< query of the first sequence; null: no documents
  int64_t length;           ///< of a sequence

  QueryStarts(const DocumentStarts& starts, const AttentionShape& shape)
      : of_first(starts.empty() ? nullptr
                                : starts.as<int32_t>() + shape.key_length - shape.query_length),
        length(starts.empty() ? 0 : starts.count() / shape.batch) {}
  __device__ __forceinline__ const int32_t* of(int64_t b) const {
    return of_first == nullptr ? nullptr : of_first + b * length;
  }
};

/// Whether the document of a query begins behind a key.
__device__ __forceinline__ bool begins_behind(const int32_t* starts, int query, int length,
                                              int key) {
  return starts != nullptr && query < length && key < starts[query];
}

/// How many of `tiles` tiles of queries from `first_query` on see a key up to `last_key`.
template <int kQueries>
__device__ __forceinline__ int tiles_that_see(const int32_t* starts, int first_query, int tiles,
                                              int last_key) {
  while (starts != nullptr && tiles > 1 &&
         starts[first_query + (tiles - 1) * kQueries] > last_key) {
    --tiles;
  }
  return tiles;
}

/// The first key of the first tile of kKeys that a block sees whose first query is `first`.
template <int kKeys>
__device__ __forceinline__ int first_key_of(const int32_t* starts, int first) {
  return starts == nullptr ? 0 : starts[first] / kKeys * kKeys;
}

/// The queries of one head that a block has.
struct QueryBlock {
  int64_t b, head, kv_head;
  int first;
  int visible;  ///< keys that they see, from the first one on
};

/// Returns the kRows queries of block (i, head, sequence): the last ones first, because they see
/// more keys. `history`: keys before the first query.
template <int kRows>
__device__ __forceinline__ QueryBlock query_block(const AttentionShape& shape, int history) {
  const int length = static_cast<int>(shape.query_length);
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kRows;
  const int64_t head = blockIdx.y;
  const int last = first + kRows;
  return {blockIdx.z, head, head / (shape.heads / shape.kv_heads), first,
          history + (last < length ? last : length)};
}

template <int kDim_>
struct DimTag {
  static constexpr int kDim = kDim_;
};
/// Host: body(DimTag<kDim>) with the least width of a tile that holds a head.
template <typename Body>
void with_head_dim(int64_t head_dim, Body body) {
  if (head_dim <= 64) {
    return body(DimTag<64>{});
  }
  if (head_dim <= 128) {
    return body(DimTag<128>{});
  }
  body(DimTag<256>{});
}

/// Fills a tile of kRows rows with `used` rows of one head (none where `used` <= 0), by all
/// kThreads threads of the block; complete after wait_for_copies and a barrier.
template <int kDim, int kRows, int kThreads, typename T>
__device__ __forceinline__ void load_tile(T* tile, const HeadRows<const T>& rows, const T* from,
                                          int used) {
  constexpr int kPack = kPackOf<T>;
  constexpr int kPacks = kDim / kPack;  // of a row
#pragma unroll 1                        // the copies wait for nothing, and registers are scarce
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kPacks; i += kThreads) {
    const int row = i / kPacks;
    const int d = i % kPacks * kPack;
    const T* values = from + row * rows.row_stride + d;
    T* to = tile + row * kRowStride<T, kDim> + d;
    if (rows.aligned) {
      const bool valid = row < used && d < rows.head_dim;
      copy_async_16(to, valid ? values : rows.data, valid);
      continue;
    }
    for (int j = 0; j < kPack; ++j) {
      const bool valid = row < used && d + j < rows.head_dim;
      to[j] = valid ? values[j] : T{};
    }
  }
}

/// Fills a tile with the keys, or values, from position `key` on that the queries of a block see.
template <int kDim, int kRows, int kThreads, typename T>
__device__ __forceinline__ void load_visible(T* tile, const HeadRows<const T>& rows,
                                             const QueryBlock& block, int key) {
  load_tile<kDim, kRows, kThreads>(tile, rows, rows.at(block.b, key, block.kv_head),
                                   block.visible - key);
}

/// Writes the first `used` rows of a tile into one head.
template <int kDim, int kRows, int kThreads, typename T>
__device__ __forceinline__ void store_tile(const T* tile, const HeadRows<T>& rows, T* to,
                                           int used) {
  constexpr int kPack = kPackOf<T>;
  constexpr int kPacks = kDim / kPack;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kPacks; i += kThreads) {
    const int row = i / kPacks;
    const int d = i % kPacks * kPack;
    if (row >= used || d >= rows.head_dim) {
      continue;
    }
    const T* values = tile + row * kRowStride<T, kDim> + d;
    T* out = to + row * rows.row_stride + d;
    if (rows.aligned) {
      store_pack(out, load_pack<kPack>(values));
      continue;
    }
    for (int j = 0; j < kPack && d + j < rows.head_dim; ++j) {
      out[j] = values[j];
    }
  }
}

/// c = 0, a warp's result.
template <int kRowTiles, int kColumnTiles>
__device__ __forceinline__ void set_zero(float (&c)[kRowTiles][kColumnTiles][4]) {
  for (auto& row : c) {
    for (auto& tile : row) {
      for (float& value : tile) {
        value = 0.0F;
      }
    }
  }
}

/// Where a value of a warp's result lies within it.
struct TileElement {
  int row;
  int column;
  int own_row;  ///< which of the lane's rows that is, known at compile time: row = 8 own_row + g
};

/// body(c value, d value, at) for each value of two results of the same shape.
template <int kRowTiles, int kColumnTiles, typename Body>
__device__ __forceinline__ void for_each_pair(float (&c)[kRowTiles][kColumnTiles][4],
                                              float (&d)[kRowTiles][kColumnTiles][4], Body body) {
  const int group = lane_index() / 4;
  const int quad = lane_index() % 4;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int own_row = m * 2 + i / 2;
        body(c[m][n][i], d[m][n][i],
             TileElement{own_row * 8 + group, n * 8 + quad * 2 + i % 2, own_row});
      }
    }
  }
}

/// body(value, at) for each value of one result.
template <int kRowTiles, int kColumnTiles, typename Body>
__device__ __forceinline__ void for_each_value(float (&c)[kRowTiles][kColumnTiles][4], Body body) {
  for_each_pair(c, c, [&](float& value, float&, TileElement at) { body(value, at); });
}

/// c += A B^T over a depth of kDim. a: the warp's first row in its tile, b: the first row of the
/// other tile.
template <int kDim, typename T, int kRowTiles, int kColumnTiles>
__device__ __forceinline__ void add_product_of_rows(float (&c)[kRowTiles][kColumnTiles][4],
                                                    const T* a, const T* b) {
  constexpr int kStride = kRowStride<T, kDim>;
  const int lane = lane_index();
  if constexpr (kOnTensorCores<T>) {
    static_assert(kColumnTiles % 2 == 0);
    const T* a_row = a + lane % 16 * kStride + lane / 16 * 8;
    const T* b_row = b + (lane / 16 * 8 + lane % 8) * kStride + lane / 8 % 2 * 8;
#pragma unroll 4
    for (int k = 0; k < kDim; k += 16) {
      uint32_t left[kRowTiles][4];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        load_matrices(left[m], a_row + m * 16 * kStride + k);
      }
#pragma unroll
      for (int n = 0; n < kColumnTiles; n += 2) {
        uint32_t right[4];
        load_matrices(right, b_row + n * 8 * kStride + k);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          multiply_tile<T>(c[m][n], left[m], right[0], right[1]);
          multiply_tile<T>(c[m][n + 1], left[m], right[2], right[3]);
        }
      }
    }
  } else {
    const float* a_row = a + lane / 4 * kStride;
    const float* b_row = b + lane % 4 * 2 * kStride;
#pragma unroll 1
    for (int k = 0; k < kDim; k += 4) {
      Pack<float, 4> left[kRowTiles * 2];
#pragma unroll
      for (int m = 0; m < kRowTiles * 2; ++m) {
        left[m] = load_pack<4>(a_row + m * 8 * kStride + k);
      }
#pragma unroll
      for (int n = 0; n < kColumnTiles * 2; ++n) {
        const Pack<float, 4> right = load_pack<4>(b_row + (n / 2 * 8 + n % 2) * kStride + k);
#pragma unroll
        for (int m = 0; m < kRowTiles * 2; ++m) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            float& sum = c[m / 2][n / 2][m % 2 * 2 + n % 2];
            sum = fmaf(left[m].values[j], right.values[j], sum);
          }
        }
      }
    }
  }
}

/// Floats of shared memory that add_product of a left side with that many columns needs per warp.
template <typename T, int kRowTiles, int kColumns>
constexpr int kStagingFloats = kOnTensorCores<T> ? 0 : kRowTiles * 16 * (kColumns + 4);

/// c += P B, where P is the result of a product, rounded to T. b: the first row of its tile, at the
/// first of the columns wanted. `staging`: kStagingFloats of the warp's own.
template <int kDim, typename T, int kRowTiles, int kDepthTiles, int kColumnTiles>
__device__ __forceinline__ void add_product(float (&c)[kRowTiles][kColumnTiles][4],
                                            float (&p)[kRowTiles][kDepthTiles][4], const T* b,
                                            float* staging) {
  constexpr int kStride = kRowStride<T, kDim>;
  const int lane = lane_index();
  if constexpr (kOnTensorCores<T>) {
    static_assert(kColumnTiles % 2 == 0 && kDepthTiles % 2 == 0);
    const T* b_row = b + lane % 16 * kStride + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < kDepthTiles; k += 2) {
      uint32_t left[kRowTiles][4];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float(&tile)[4] = p[m][k + i / 2];
          left[m][i] = narrow_pair<T>(tile[i % 2 * 2], tile[i % 2 * 2 + 1]);
        }
      }
#pragma unroll
      for (int n = 0; n < kColumnTiles; n += 2) {
        uint32_t right[4];
        load_matrices_transposed(right, b_row + k * 8 * kStride + n * 8);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          multiply_tile<T>(c[m][n], left[m], right[0], right[1]);
          multiply_tile<T>(c[m][n + 1], left[m], right[2], right[3]);
        }
      }
    }
  } else {
    constexpr int kStagingStride = kDepthTiles * 8 + 4;
    __syncwarp();  // until the last product has been read
    for_each_value(p, [&](float value, TileElement at) {
      staging[at.row * kStagingStride + at.column] = value;
    });
    __syncwarp();
    const float* p_row = staging + lane / 4 * kStagingStride;
    const float* b_column = b + lane % 4 * 2;
#pragma unroll 1
    for (int k = 0; k < kDepthTiles * 8; k += 4) {
      Pack<float, 4> left[kRowTiles * 2];
#pragma unroll
      for (int m = 0; m < kRowTiles * 2; ++m) {
        left[m] = load_pack<4>(p_row + m * 8 * kStagingStride + k);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int n = 0; n < kColumnTiles; ++n) {
          const Pack<float, 2> right = load_pack<2>(b_column + (k + j) * kStride + n * 8);
#pragma unroll
          for (int m = 0; m < kRowTiles * 4; ++m) {
            float& sum = c[m / 4][n][m % 4];
            sum = fmaf(left[m / 2].values[j], right.values[m % 2], sum);
          }
        }
      }
    }
  }
}

/// A warp's result into a tile, rounded to T. `tile`: at the warp's first row and column.
template <int kDim, typename T, int kRowTiles, int kColumnTiles>
__device__ __forceinline__ void result_to_tile(const float (&c)[kRowTiles][kColumnTiles][4],
                                               T* tile) {
  T* corner = tile + lane_index() / 4 * kRowStride<T, kDim> + lane_index() % 4 * 2;
#pragma unroll
  for (int m = 0; m < kRowTiles * 2; ++m) {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
      const float(&values)[4] = c[m / 2][n];
      Pack<T, 2> pair;
      store_from_float(&pair.values[0], values[m % 2 * 2]);
      store_from_float(&pair.values[1], values[m % 2 * 2 + 1]);
      store_pack(corner + m * 8 * kRowStride<T, kDim> + n * 8, pair);
    }
  }
}

}  // namespace fp8train::ops::cuda
