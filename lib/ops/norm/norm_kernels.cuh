#pragma once
// Kernels of RMSNorm and LayerNorm over rows, which may be slices (heads) of wider rows. Rows of
// bf16 that lie in packs of 16 bytes are held in registers: a team of threads has a row, a block
// several teams. All other rows take the kernels of norm_any.cuh. Sums over a row are trees over
// its team, sums over rows go over the rows of a chunk in order, then over teams and chunks:
// results repeat bitwise and are the cpu's up to rounding. Only for .cu files.

#include "ops/cast/cast_tiles.cuh"
#include "ops/norm/norm.h"

namespace fp8train::ops::cuda {

constexpr int kNormThreads = 256;      ///< of a block with several teams
constexpr int kNormMostThreads = 512;  ///< of a team
constexpr int kForwardVecs = 4;        ///< packs of eight elements that a thread holds of a row
template <bool kLayer>
constexpr int kBackwardVecs = kLayer ? 2 : 4;

/// Where row r = (p, h) of n elements lies: head h of `heads` in position p of `stride` elements.
struct NormRows {
  int64_t stride;
  int heads;

  FP8TRAIN_HD int64_t at(int64_t row, int n) const {
    return heads == 1 ? row * stride : row / heads * stride + row % heads * n;
  }
};

/// The arguments of a forward kernel: rows of n elements.
struct NormForwardRows {
  const void* x;
  DType x_type;
  NormRows x_rows;
  const float* weight;
  const float* bias;  ///< may be null
  float eps;
  void* y;  ///< may be x; null: only the statistics are wanted
  DType y_type;
  NormRows y_rows;
  void* original;  ///< a packed copy of x; may be null
  float* mean;     ///< LayerNorm only
  float* rstd;
  float* amax;  ///< max |y| is combined into it; may be null
  int64_t rows;
  int n;
  const void* delta = nullptr;  ///< of ResidualAdd, packed as x; null: none
  void* sum = nullptr;
};

/// The arguments of a backward kernel: rows of n elements, chunk_rows of them for each partial sum.
struct NormBackwardRows {
  const void* dy;
  DType dy_type;
  NormRows dy_rows;
  const void* x;  ///< packed
  DType x_type;
  const float* weight;
  const float* mean;  ///< LayerNorm only
  const float* rstd;
  void* dx;  ///< may be dy where the types agree
  DType dx_type;
  NormRows dx_rows;
  bool accumulate;
  float* weight_partial;  ///< [chunks, n]
  float* bias_partial;    ///< likewise; LayerNorm only
  int64_t rows;
  int64_t chunk_rows;
  int n;
};

/// The threads of a block in teams of `size`: a power of two up to 32, or a multiple of 32.
struct Team {
  int size, index, lane;

  __device__ __forceinline__ explicit Team(int team)
      : size(team),
        index(static_cast<int>(threadIdx.x) / team),
        lane(static_cast<int>(threadIdx.x) % team) {}

  __device__ __forceinline__ int count() const { return static_cast<int>(blockDim.x) / size; }

  /// All threads of a team get the sum of its values. All threads of the block take part. `shared`:
  /// a value for each warp, free again when the call returns.
  __device__ __forceinline__ float sum(float value, float* shared) const {
    if (size <= kWarp) {
      for (int bits = size / 2; bits > 0; bits /= 2) {
        value += __shfl_xor_sync(kAllLanes, value, bits);
      }
      return value;
    }
    value = warp_reduce(value, Sum{});
    if (lane_index() == 0) {
      shared[warp_index()] = value;
    }
    __syncthreads();
    const int first = index * (size / kWarp);
    float total = shared[first];
    for (int warp = first + 1; warp < first + size / kWarp; ++warp) {
      total += shared[warp];
    }
    __syncthreads();
    return total;
  }
};

/// *amax = max(*amax, magnitudes of a whole block), of any number of warps.
__device__ __forceinline__ void raise_block_amax(float* amax, float value, float* shared) {
  uint32_t largest = warp_reduce(bits_of(value), Largest{});
  if (lane_index() == 0) {
    shared[warp_index()] = float_of(largest);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int warp = 1; warp < static_cast<int>(blockDim.x) / kWarp; ++warp) {
      largest = Largest{}(largest, bits_of(shared[warp]));
    }
    atomicMax(reinterpret_cast<unsigned*>(amax), largest);
  }
}

/// Returns x - mean for a norm's input; RMSNorm has no mean.
template <bool kLayer>
__device__ __forceinline__ float centered(float x, float mean) {
  return kLayer ? x - mean : x;
}

/// x = x + delta for the packs of a row that starts at element `at`, into `sum` too.
__device__ __forceinline__ void add_residual(const NormForwardRows& call, const Team& team,
                                             int64_t at, int length,
                                             Vec8<bf16> (&x)[kForwardVecs]) {
  const bf16* const delta_row = static_cast<const bf16*>(call.delta) + (length == 0 ? 0 : at);
  bf16* const sum_row = static_cast<bf16*>(call.sum) + (length == 0 ? 0 : at);
  Vec8<bf16> delta[kForwardVecs];
#pragma unroll
  for (int v = 0; v < kForwardVecs; ++v) {
    const int column = (team.lane + v * team.size) * kVec8;
    delta[v] = load_vec8<true>(delta_row + column, length - column);
  }
#pragma unroll
  for (int v = 0; v < kForwardVecs; ++v) {
    const int column = (team.lane + v * team.size) * kVec8;
    float values[kVec8], added[kVec8];
    vec8_values(x[v], values);
    vec8_values(delta[v], added);
#pragma unroll
    for (int j = 0; j < kVec8; ++j) {
      values[j] += added[j];
    }
    x[v] = vec8_of<bf16>(values, kVec8);
    store_vec8<true>(sum_row + column, x[v], length - column);
  }
}

/// A team has a row at a time.
template <bool kLayer>
__global__ void __launch_bounds__(kNormMostThreads)
    norm_forward_kernel(NormForwardRows call, int team_size) {
  FP8TRAIN_SHARED_ARRAY(float, shared, kNormMostThreads / kWarp);
  const Team team(team_size);
  const int n = call.n;
  const float inverse_count = 1.0F / static_cast<float>(n);
  const auto* const from = static_cast<const bf16*>(call.x);
  AmaxBits<bf16> amax_bits;
  const int64_t stride = int64_t{gridDim.x} * team.count();
  for (int64_t first = int64_t{blockIdx.x} * team.count(); first < call.rows; first += stride) {
    const int64_t row = first + team.index;
    const bool exists = row < call.rows;
    const int length = exists ? n : 0;
    const bf16* const x_row = from + call.x_rows.at(exists ? row : 0, n);
    Vec8<bf16> x[kForwardVecs];
    float sum = 0.0F;
    float square_sum = 0.0F;
#pragma unroll
    for (int v = 0; v < kForwardVecs; ++v) {
      const int column = (team.lane + v * team.size) * kVec8;
      x[v] = load_vec8<true>(x_row + column, length - column);
    }
    if (call.delta != nullptr) {
      add_residual(call, team, row * n, length, x);
    }
#pragma unroll
    for (int v = 0; v < kForwardVecs; ++v) {
      float values[kVec8];
      vec8_values(x[v], values);
#pragma unroll
      for (int j = 0; j < kVec8; ++j) {
        if (kLayer) {
          sum += values[j];
        } else {
          square_sum = fmaf(values[j], values[j], square_sum);
        }
      }
    }
    const float mean = kLayer ? team.sum(sum, shared) * inverse_count : 0.0F;
    if (kLayer) {
#pragma unroll
      for (int v = 0; v < kForwardVecs; ++v) {
        float values[kVec8];
        vec8_values(x[v], values);
        const bool inside = (team.lane + v * team.size) * kVec8 < length;
#pragma unroll
        for (int j = 0; j < kVec8; ++j) {
          const float value = inside ? values[j] - mean : 0.0F;
          square_sum = fmaf(value, value, square_sum);
        }
      }
    }
    const float rstd = rsqrtf(fmaf(team.sum(square_sum, shared), inverse_count, call.eps));
    if (exists && team.lane == 0) {
      call.rstd[row] = rstd;
      if (kLayer) {
        call.mean[row] = mean;
      }
    }
    if (call.y == nullptr || !exists) {
      continue;
    }
    bf16* const y_row = static_cast<bf16*>(call.y) + call.y_rows.at(row, n);
#pragma unroll
    for (int v = 0; v < kForwardVecs; ++v) {
      const int column = (team.lane + v * team.size) * kVec8;
      if (column >= n) {
        continue;
      }
      float values[kVec8], weight[kVec8];
      vec8_values(x[v], values);
      load_values<kVec8, true>(call.weight + column, weight, kVec8);
#pragma unroll
      for (int j = 0; j < kVec8; ++j) {
        values[j] = centered<kLayer>(values[j], mean) * rstd * weight[j];
      }
      if (kLayer && call.bias != nullptr) {
        float bias[kVec8];
        load_values<kVec8, true>(call.bias + column, bias, kVec8);
#pragma unroll
        for (int j = 0; j < kVec8; ++j) {
          values[j] += bias[j];
        }
      }
      if (call.original != nullptr) {
        store_vec8<true>(static_cast<bf16*>(call.original) + row * n + column, x[v], kVec8);
      }
      const Vec8<bf16> y = vec8_of<bf16>(values, kVec8);
      amax_bits.add(y);
      store_vec8<true>(y_row + column, y, kVec8);
    }
  }
  if (call.amax != nullptr) {
    raise_block_amax(call.amax, amax_bits.value(), shared);
  }
}

/// The sums over a block's rows of the columns of each of its teams, into `partial` [n]: in order
/// of teams. `shared`: [teams, n] where there are several.
template <int kVecs>
__device__ __forceinline__ void write_column_sums(const Team& team, int n,
                                                  const float (&sums)[kVecs][kVec8], float* partial,
                                                  float* shared) {
  const int teams = team.count();
  float* const to = teams == 1 ? partial : shared + team.index * n;
#pragma unroll
  for (int v = 0; v < kVecs; ++v) {
    const int column = (team.lane + v * team.size) * kVec8;
    if (column < n) {
      store_values<kVec8, true>(to + column, sums[v], kVec8);
    }
  }
  if (teams == 1) {
    return;
  }
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < n; c += static_cast<int>(blockDim.x)) {
    float sum = shared[c];
    for (int i = 1; i < teams; ++i) {
      sum += shared[i * n + c];
    }
    partial[c] = sum;
  }
  __syncthreads();
}

/// One block works on one chunk of rows, each team on one at a time. dx = rstd * (g - mean(g) -
/// xhat * mean(g * xhat)) with g = dy * weight and xhat = (x - mean) * rstd, where RMSNorm has no
/// mean(g).
template <bool kLayer>
__global__ void __launch_bounds__(kNormMostThreads)
    norm_backward_kernel(NormBackwardRows call, int team_size) {
  constexpr int kVecs = kBackwardVecs<kLayer>;
  FP8TRAIN_SHARED_DYNAMIC(float, columns);
  FP8TRAIN_SHARED_ARRAY(float, shared, kNormMostThreads / kWarp);
  const Team team(team_size);
  const int n = call.n;
  const float inverse_count = 1.0F / static_cast<float>(n);
  const int64_t begin = blockIdx.x * call.chunk_rows;
  const int64_t chunk_end = begin + call.chunk_rows;
  const int64_t end = chunk_end < call.rows ? chunk_end : call.rows;
  float weight_sums[kVecs][kVec8] = {};
  float bias_sums[kLayer ? kVecs : 1][kVec8] = {};
#pragma unroll 1
  for (int64_t first = begin; first < end; first += team.count()) {
    const int64_t row = first + team.index;
    const bool exists = row < end;
    const int length = exists ? n : 0;
    const int64_t safe = exists ? row : begin;
    const float rstd = call.rstd[safe];
    const float mean = kLayer ? call.mean[safe] : 0.0F;
    const bf16* const x_row = static_cast<const bf16*>(call.x) + safe * n;
    const bf16* const dy_row = static_cast<const bf16*>(call.dy) + call.dy_rows.at(safe, n);
    Vec8<bf16> x[kVecs], dy[kVecs];
#pragma unroll
    for (int v = 0; v < kVecs; ++v) {
      const int column = (team.lane + v * team.size) * kVec8;
      x[v] = load_vec8<true>(x_row + column, length - column);
      dy[v] = load_vec8<true>(dy_row + column, length - column);
    }
    float gradient_sum = 0.0F;
    float projection = 0.0F;
#pragma unroll
    for (int v = 0; v < kVecs; ++v) {
      const int column = (team.lane + v * team.size) * kVec8;
      float values[kVec8], gradient[kVec8], weight[kVec8];
      vec8_values(x[v], values);
      vec8_values(dy[v], gradient);
      load_values<kVec8, true>(call.weight + (column < n ? column : 0), weight, kVec8);
#pragma unroll
      for (int j = 0; j < kVec8; ++j) {
        const float scaled = gradient[j] * weight[j];
        projection = fmaf(scaled, centered<kLayer>(values[j], mean), projection);
        if (kLayer) {
          gradient_sum += scaled;
        }
      }
    }
    const float gradient_mean = kLayer ? team.sum(gradient_sum, shared) * inverse_count : 0.0F;
    // The slope belongs to xhat, which is x times rstd, in both the sum and the product.
    const float slope = team.sum(projection, shared) * inverse_count * rstd * rstd;
    bf16* const dx_row = static_cast<bf16*>(call.dx) + call.dx_rows.at(safe, n);
#pragma unroll
    for (int v = 0; v < kVecs; ++v) {
      const int column = (team.lane + v * team.size) * kVec8;
      if (column >= length) {
        continue;
      }
      float values[kVec8], gradient[kVec8], weight[kVec8];
      vec8_values(x[v], values);
      vec8_values(dy[v], gradient);
      load_values<kVec8, true>(call.weight + column, weight, kVec8);
#pragma unroll
      for (int j = 0; j < kVec8; ++j) {
        const float value = centered<kLayer>(values[j], mean);
        weight_sums[v][j] = fmaf(gradient[j], value * rstd, weight_sums[v][j]);
        if constexpr (kLayer) {
          bias_sums[v][j] += gradient[j];
        }
        const float scaled =
            kLayer ? fmaf(gradient[j], weight[j], -gradient_mean) : gradient[j] * weight[j];
        values[j] = rstd * fmaf(-value, slope, scaled);
      }
      if (call.accumulate) {
        float before[kVec8];
        vec8_values(load_vec8<true>(dx_row + column, kVec8), before);
#pragma unroll
        for (int j = 0; j < kVec8; ++j) {
          values[j] += before[j];
        }
      }
      store_vec8<true>(dx_row + column, vec8_of<bf16>(values, kVec8), kVec8);
    }
  }
  const int64_t partial = int64_t{blockIdx.x} * n;
  write_column_sums<kVecs>(team, n, weight_sums, call.weight_partial + partial, columns);
  if constexpr (kLayer) {
    write_column_sums<kVecs>(team, n, bias_sums, call.bias_partial + partial, columns);
  }
}

}  // namespace fp8train::ops::cuda
