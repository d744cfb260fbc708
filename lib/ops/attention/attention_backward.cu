// Gradients of causal attention, without cuDNN and without atomics: after delta = rowsum(out *
// dout), one kernel whose blocks own keys sums dK and dV over the group's heads and their blocks of
// queries, in order; another whose blocks own queries sums dQ over the keys. Both compute the
// probabilities again from log_sum_exp. A block's own two tiles stay in shared memory, those of the
// other side stream through; each warp owns rows of the block's tiles, so that no sum crosses
// warps.

#include "base/math.h"
#include "ops/attention/attention_backward_block.cuh"
#include "ops/attention/attention_kernels_cuda.h"

namespace fp8train::ops::cuda {
namespace {

/// The arguments of the three kernels.
template <typename T>
struct BackwardCall {
  AttentionShape shape;
  HeadRows<const T> q, k, v, out, dout;
  HeadRows<T> dq, dk, dv;
  HeadRows<float> wide_dk, wide_dv;  // in place of dk and dv where these are fp32 and T is not
  bool is_wide;
  const float* log_sum_exp;
  float* delta;  // [B, H, Tq]
  QueryStarts document_starts;

  /// Keys before the first query.
  __device__ __forceinline__ int history() const {
    return static_cast<int>(shape.key_length - shape.query_length);
  }
};

/// delta[b, h, t] = sum over d of out * dout: each row by as many lanes as it has packs.
template <typename T, int kDim>
__global__ void delta_kernel(BackwardCall<T> call, int64_t rows) {
  constexpr int kPack = kPackOf<T>;
  constexpr int kLanes = kDim / kPack < kWarp ? kDim / kPack : kWarp;
  const AttentionShape& shape = call.shape;
  // By position first, heads innermost: neighbors read neighboring memory.
  const int64_t row = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kLanes;
  const int64_t head = row % shape.heads;
  const int64_t t = row / shape.heads % shape.query_length;
  const int64_t b = row / shape.heads / shape.query_length;
  float sum = 0.0F;
  if (row < rows) {
    const T* out = call.out.at(b, t, head);
    const T* dout = call.dout.at(b, t, head);
    const bool packed = call.out.aligned && call.dout.aligned;
    for (int d = lane_index() % kLanes * kPack; d < call.out.head_dim; d += kLanes * kPack) {
      Pack<T, kPack> left = {};
      Pack<T, kPack> right = {};
      if (packed) {
        left = load_pack<kPack>(out + d);
        right = load_pack<kPack>(dout + d);
      } else {
        for (int j = 0; j < kPack && d + j < call.out.head_dim; ++j) {
          left.values[j] = out[d + j];
          right.values[j] = dout[d + j];
        }
      }
#pragma unroll
      for (int j = 0; j < kPack; ++j) {
        sum = fmaf(load_as_float(&left.values[j]), load_as_float(&right.values[j]), sum);
      }
    }
  }
  for (int bits = kLanes / 2; bits > 0; bits /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, bits);
  }
  if (row < rows && lane_index() % kLanes == 0) {
    call.delta[(b * shape.heads + head) * shape.query_length + t] = sum;
  }
}

/// Where a block that owns keys reads its queries: step s handles one tile of one of the group's
/// heads.
template <typename T, int kDim, typename Tiles>
struct QueryStream {
  static constexpr int kColumns = Tiles::kColumns;
  const BackwardCall<T>& call;
  const BackwardBlock<T, Tiles>& block;
  int64_t b;
  int length;
  int group;  // heads that share a head of keys
  int first_head;
  int first_query;
  int tiles;  // of one head

  /// `starts` are those of the sequence.
  __device__ __forceinline__ QueryStream(const BackwardCall<T>& of,
                                         const BackwardBlock<T, Tiles>& to, const OwnRows& keys,
                                         const int32_t* starts)
      : call(of),
        block(to),
        b(keys.b),
        length(static_cast<int>(of.shape.query_length)),
        group(static_cast<int>(of.shape.heads / of.shape.kv_heads)),
        first_head(static_cast<int>(keys.head) * group),
        first_query(keys.first < of.history() ? 0
                                              : (keys.first - of.history()) / kColumns * kColumns),
        tiles(tiles_that_see<kColumns>(starts, first_query,
                                       ceil_div(length - first_query, kColumns),
                                       keys.first + Tiles::kRows - 1)) {}

  __device__ __forceinline__ int steps() const { return group * tiles; }
  __device__ __forceinline__ int head_of(int step) const { return first_head + step / tiles; }
  __device__ __forceinline__ int query_of(int step) const {
    return first_query + step % tiles * kColumns;
  }

  __device__ __forceinline__ void load_queries(int step) const {
    const int head = head_of(step);
    const int query = query_of(step);
    const int stage = step % 2;
    load_tile<kDim, kColumns, Tiles::kThreads>(block.first_streamed + stage * Tiles::kStreamed,
                                               call.q, call.q.at(b, query, head), length - query);
    const int64_t stored = (b * call.shape.heads + head) * length + query;
    for (int i = static_cast<int>(threadIdx.x); i < kColumns; i += Tiles::kThreads) {
      const bool valid = query + i < length;
      block.log_sum_exp[stage * kColumns + i] =
          valid ? call.log_sum_exp[stored + i] * kLog2E : 0.0F;
      block.delta[stage * kColumns + i] = valid ? call.delta[stored + i] : 0.0F;
    }
  }

  /// Returns the statistics of the query in a column of the step's tile.
  __device__ __forceinline__ QueryStatistics statistics(int step, int column) const {
    const int at = step % 2 * kColumns + column;
    return {block.log_sum_exp[at], block.delta[at]};
  }

  __device__ __forceinline__ void load_output_gradients(int step) const {
    const int query = query_of(step);
    load_tile<kDim, kColumns, Tiles::kThreads>(
        block.second_streamed, call.dout, call.dout.at(b, query, head_of(step)), length - query);
  }
};

/// Writes a warp's gradients of its own rows, the columns from `column` on, without a rounding.
template <typename Gradient>
__device__ __forceinline__ void store_wide(Gradient& gradient, const HeadRows<float>& rows,
                                           const OwnRows& own, int first, int column) {
  for_each_value(gradient, [&](float& value, TileElement at) {
    if (first + at.row < own.length && column + at.column < rows.head_dim) {
      rows.at(own.b, first + at.row, own.head)[column + at.column] = value;
    }
  });
}

/// The gradients of a block's keys and values.
template <typename T, int kDim>
__global__ void __launch_bounds__(BackwardTiles<T, kDim, true>::kThreads)
    keys_kernel(BackwardCall<T> call) {
  using Tiles = BackwardTiles<T, kDim, true>;
  constexpr int kColumns = Tiles::kColumns;
  FP8TRAIN_SHARED_DYNAMIC(T, shared);
  const BackwardBlock<T, Tiles> block(shared);
  const int length = static_cast<int>(call.shape.key_length);
  const int first = static_cast<int>(blockIdx.x) * Tiles::kRows;  // earlier keys are seen by more
  const OwnRows own = {blockIdx.z, blockIdx.y, first, length};
  const int32_t* const starts = call.document_starts.of(own.b);
  const QueryStream<T, kDim, Tiles> stream(call, block, own, starts);
  const int steps = stream.steps();
  block.template load_own<kDim>(0, call.k, own);
  block.template load_own<kDim>(1, call.v, own);
  stream.load_queries(0);
  stream.load_output_gradients(0);

  const int own_first = first + block.warp_row;
  typename Tiles::Gradient key_gradient;
  typename Tiles::Gradient value_gradient;
  set_zero(key_gradient);
  set_zero(value_gradient);
  for (int step = 0; step < steps; ++step) {
    wait_for_copies();
    __syncthreads();  // this step's tiles are here, and nobody reads the last step's queries
    if (step + 1 < steps) {
      stream.load_queries(step + 1);
    }
    const T* queries = block.first_streamed + step % 2 * Tiles::kStreamed;
    const int shift = own_first - call.history() - stream.query_of(step);
    const bool seen = own_first < length && shift < kColumns;
    const bool masks = shift + Tiles::kWarpRows - 1 > 0;
    ScoreTile<Tiles> scores;
    if (seen) {
      const auto statistics_of = [&](TileElement at) { return stream.statistics(step, at.column); };
      scores.template compute<kDim>(
          block, queries, call.shape.scale, statistics_of, [&](TileElement at) {
            const int query = stream.query_of(step) + at.column;
            return begins_behind(starts, query, stream.length, own_first + at.row) ||
                   (masks && at.row + shift > at.column);
          });
      add_product<kDim>(value_gradient, scores.probabilities,
                        block.second_streamed + block.warp_column, block.staging);
    }
    __syncthreads();  // nobody reads the gradients of the output any more
    if (step + 1 < steps) {
      stream.load_output_gradients(step + 1);
    }
    if (seen) {
      add_product<kDim>(key_gradient, scores.gradients, queries + block.warp_column, block.staging);
    }
  }

  for_each_value(key_gradient, [&](float& value, TileElement) { value *= call.shape.scale; });
  if (call.is_wide) {
    store_wide(key_gradient, call.wide_dk, own, own_first, block.warp_column);
    return store_wide(value_gradient, call.wide_dv, own, own_first, block.warp_column);
  }
  block.template store_own<kDim>(0, key_gradient, call.dk, own);
  block.template store_own<kDim>(1, value_gradient, call.dv, own);
}

/// The statistics of a lane's own rows, those from `first` on.
template <int kOwnRows>
struct OwnStatistics {
  float log_sum_exp[kOwnRows];
  float delta[kOwnRows];

  template <typename T>
  __device__ __forceinline__ OwnStatistics(const BackwardCall<T>& call, const OwnRows& own,
                                           int first) {
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      const int query = first + i * 8 + lane_index() / 4;
      const int64_t stored = (own.b * call.shape.heads + own.head) * own.length + query;
      log_sum_exp[i] = query < own.length ? call.log_sum_exp[stored] * kLog2E : 0.0F;
      delta[i] = query < own.length ? call.delta[stored] : 0.0F;
    }
  }

  __device__ __forceinline__ QueryStatistics operator[](int own_row) const {
    return {log_sum_exp[own_row], delta[own_row]};
  }
};

/// The gradients of a block's queries.
template <typename T, int kDim>
__global__ void __launch_bounds__(BackwardTiles<T, kDim, false>::kThreads)
    queries_kernel(BackwardCall<T> call) {
  using Tiles = BackwardTiles<T, kDim, false>;
  constexpr int kColumns = Tiles::kColumns;
  FP8TRAIN_SHARED_DYNAMIC(T, shared);
  const BackwardBlock<T, Tiles> block(shared);
  const int length = static_cast<int>(call.shape.query_length);
  const QueryBlock at = query_block<Tiles::kRows>(call.shape, call.history());
  const auto load_keys = [&](int key, int stage) {
    load_visible<kDim, kColumns, Tiles::kThreads>(block.first_streamed + stage * Tiles::kStreamed,
                                                  call.k, at, key);
  };
  const auto load_values = [&](int key) {
    load_visible<kDim, kColumns, Tiles::kThreads>(block.second_streamed, call.v, at, key);
  };
  const OwnRows own = {at.b, at.head, at.first, length};
  block.template load_own<kDim>(0, call.q, own);
  block.template load_own<kDim>(1, call.dout, own);
  const int32_t* const starts = call.document_starts.of(at.b);
  const int first_key = first_key_of<kColumns>(starts, at.first);
  load_keys(first_key, 0);
  load_values(first_key);

  const int own_first = at.first + block.warp_row;
  const OwnDocuments<Tiles::kRowTiles * 2> documents(starts, own_first, length);
  const OwnStatistics<Tiles::kRowTiles * 2> statistics(call, own, own_first);
  typename Tiles::Gradient query_gradient;
  set_zero(query_gradient);
  int stage = 0;
  for (int key = first_key; key < at.visible; key += kColumns, stage ^= 1) {
    wait_for_copies();
    __syncthreads();  // this tile is here, and nobody reads the last one's keys
    if (key + kColumns < at.visible) {
      load_keys(key + kColumns, stage ^ 1);
    }
    const T* keys = block.first_streamed + stage * Tiles::kStreamed;
    const int shift = key - call.history() - own_first;
    const bool seen = own_first < length && shift < Tiles::kWarpRows;
    const bool masks = shift + kColumns - 1 > 0;
    ScoreTile<Tiles> scores;
    if (seen) {
      const auto statistics_of = [&](TileElement one) { return statistics[one.own_row]; };
      scores.template compute<kDim>(block, keys, call.shape.scale, statistics_of,
                                    [&](TileElement one) {
                                      return key + one.column < documents.begin[one.own_row] ||
                                             (masks && one.column + shift > one.row);
                                    });
    }
    __syncthreads();  // nobody reads the values any more
    if (key + kColumns < at.visible) {
      load_values(key + kColumns);
    }
    if (seen) {
      add_product<kDim>(query_gradient, scores.gradients, keys + block.warp_column, block.staging);
    }
  }

  for_each_value(query_gradient, [&](float& value, TileElement) { value *= call.shape.scale; });
  block.template store_own<kDim>(0, query_gradient, call.dq, own);
}

/// Starts the three kernels with tiles of kDim columns.
template <typename T, int kDim>
void run_backward(const Stream& stream, const BackwardCall<T>& call) {
  using KeyTiles = BackwardTiles<T, kDim, true>;
  using QueryTiles = BackwardTiles<T, kDim, false>;
  constexpr int kLanes = kDim / kPackOf<T> < kWarp ? kDim / kPackOf<T> : kWarp;
  const AttentionShape& shape = call.shape;
  const int64_t rows = shape.batch * shape.heads * shape.query_length;
  launch(stream, {static_cast<unsigned>(ceil_div(rows * kLanes, kBlock)), kBlock},
         delta_kernel<T, kDim>, call, rows);
  const auto grid = [&](int64_t length, int64_t block_rows, int64_t heads) {
    return dim3(static_cast<unsigned>(ceil_div(length, block_rows)), static_cast<unsigned>(heads),
                static_cast<unsigned>(shape.batch));
  };
  launch(stream,
         {grid(shape.key_length, KeyTiles::kRows, shape.kv_heads), KeyTiles::kThreads,
          KeyTiles::kSharedBytes},
         keys_kernel<T, kDim>, call);
  launch(stream,
         {grid(shape.query_length, QueryTiles::kRows, shape.heads), QueryTiles::kThreads,
          QueryTiles::kSharedBytes},
         queries_kernel<T, kDim>, call);
}

}  // namespace

void own_attention_backward(Stream stream, const AttentionBackward& call) {
  const int64_t head_dim = call.shape.head_dim;
  with_float_type(call.q.dtype, [&]<typename T>(TypeTag<T>) {
    const BackwardCall<T> arguments = {call.shape,
                                       head_rows<const T>(call.q, head_dim),
                                       head_rows<const T>(call.k, head_dim),
                                       head_rows<const T>(call.v, head_dim),
                                       head_rows<const T>(call.out, head_dim),
                                       head_rows<const T>(call.dout, head_dim),
                                       head_rows<T>(call.dq, head_dim),
                                       head_rows<T>(call.dk, head_dim),
                                       head_rows<T>(call.dv, head_dim),
                                       head_rows<float>(call.dk, head_dim),
                                       head_rows<float>(call.dv, head_dim),
                                       call.dk.dtype != call.q.dtype,
                                       call.log_sum_exp.as<float>(),
                                       call.scratch.as<float>(),
                                       QueryStarts(call.document_starts, call.shape)};
    with_head_dim(head_dim,
                  [&](auto dim) { run_backward<T, decltype(dim)::kDim>(stream, arguments); });
  });
}

}  // namespace fp8train::ops::cuda
