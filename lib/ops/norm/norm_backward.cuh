#pragma once
// The backward kernel of RMSNorm and LayerNorm for rows of bf16 in packs of 16 bytes, which a team
// of threads holds in registers. Only for .cu files.

#include "ops/norm/norm_kernels.cuh"

namespace fp8train::ops::cuda {

/// Packs of eight elements that a thread holds of a row.
template <bool kLayer>
constexpr int kBackwardVecs = kLayer ? 2 : 4;

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

/// A team's share of a row in the backward pass; `length` is 0 where the row does not exist.
template <bool kLayer>
struct BackwardRow {
  static constexpr int kVecs = kBackwardVecs<kLayer>;
  Vec8<bf16> x[kVecs], dy[kVecs];
  RowStatistics statistics;
  int length;

  __device__ __forceinline__ BackwardRow(const NormBackwardRows& call, const Team& team,
                                         int64_t row, int count)
      : statistics{kLayer ? call.means()[row] : 0.0F, call.rstds()[row]}, length(count) {
    const bf16* const x_row = static_cast<const bf16*>(call.x.data) + row * call.n;
    const bf16* const dy_row = static_cast<const bf16*>(call.dy.data) + call.rows.at(row, call.n);
#pragma unroll
    for (int v = 0; v < kVecs; ++v) {
      const int column = (team.lane + v * team.size) * kVec8;
      x[v] = load_vec8<true>(x_row + column, length - column);
      dy[v] = load_vec8<true>(dy_row + column, length - column);
    }
  }
};

/// Returns the slopes of a team's row.
template <bool kLayer>
__device__ __forceinline__ RowSlopes row_slopes(const NormBackwardRows& call, const Team& team,
                                                const BackwardRow<kLayer>& row, float inverse_count,
                                                float* shared) {
  float gradient_sum = 0.0F;
  float projection = 0.0F;
#pragma unroll
  for (int v = 0; v < row.kVecs; ++v) {
    const int column = (team.lane + v * team.size) * kVec8;
    float values[kVec8], gradient[kVec8], weight[kVec8];
    vec8_values(row.x[v], values);
    vec8_values(row.dy[v], gradient);
    load_values<kVec8, true>(call.weights() + (column < call.n ? column : 0), weight, kVec8);
#pragma unroll
    for (int j = 0; j < kVec8; ++j) {
      const float scaled = gradient[j] * weight[j];
      projection = fmaf(scaled, centered<kLayer>(values[j], row.statistics.mean), projection);
      if (kLayer) {
        gradient_sum += scaled;
      }
    }
  }
  const float gradient_mean = kLayer ? team.sum(gradient_sum, shared) * inverse_count : 0.0F;
  // The slope belongs to xhat, which is x times rstd, in both the sum and the product.
  const float rstd = row.statistics.rstd;
  return {gradient_mean, team.sum(projection, shared) * inverse_count * rstd * rstd};
}

/// A thread's sums over rows, for the gradients of the weight and, for LayerNorm, the bias.
template <bool kLayer>
struct ColumnSums {
  static constexpr int kVecs = kBackwardVecs<kLayer>;
  float weight[kVecs][kVec8] = {};
  float bias[kLayer ? kVecs : 1][kVec8] = {};
};

/// Writes dx of a team's row, or adds it, and adds the row to the sums over rows.
template <bool kLayer>
__device__ __forceinline__ void write_gradient(const NormBackwardRows& call, const Team& team,
                                               const BackwardRow<kLayer>& row,
                                               const RowSlopes& slopes, bf16* dx_row,
                                               ColumnSums<kLayer>& sums) {
  const float rstd = row.statistics.rstd;
#pragma unroll
  for (int v = 0; v < row.kVecs; ++v) {
    const int column = (team.lane + v * team.size) * kVec8;
    if (column >= row.length) {
      continue;
    }
    float values[kVec8], gradient[kVec8], weight[kVec8];
    vec8_values(row.x[v], values);
    vec8_values(row.dy[v], gradient);
    load_values<kVec8, true>(call.weights() + column, weight, kVec8);
#pragma unroll
    for (int j = 0; j < kVec8; ++j) {
      const float value = centered<kLayer>(values[j], row.statistics.mean);
      sums.weight[v][j] = fmaf(gradient[j], value * rstd, sums.weight[v][j]);
      if constexpr (kLayer) {
        sums.bias[v][j] += gradient[j];
      }
      const float scaled =
          kLayer ? fmaf(gradient[j], weight[j], -slopes.gradient_mean) : gradient[j] * weight[j];
      values[j] = rstd * fmaf(-value, slopes.slope, scaled);
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

/// One block works on one chunk of rows, each team on one at a time. dx = rstd * (g - mean(g) -
/// xhat * mean(g * xhat)) with g = dy * weight and xhat = (x - mean) * rstd, where RMSNorm has no
/// mean(g).
template <bool kLayer>
__global__ void __launch_bounds__(kNormMostThreads)
    norm_backward_kernel(NormBackwardRows call, int team_size) {
  FP8TRAIN_SHARED_DYNAMIC(float, columns);
  FP8TRAIN_SHARED_ARRAY(float, shared, kNormMostThreads / kWarp);
  const Team team(team_size);
  const int n = call.n;
  const float inverse_count = 1.0F / static_cast<float>(n);
  const int64_t begin = blockIdx.x * call.chunk_rows;
  const int64_t chunk_end = begin + call.chunk_rows;
  const int64_t end = chunk_end < call.count ? chunk_end : call.count;
  ColumnSums<kLayer> sums;
#pragma unroll 1
  for (int64_t first = begin; first < end; first += team.count()) {
    const bool exists = first + team.index < end;
    const int64_t index = exists ? first + team.index : begin;
    const BackwardRow<kLayer> row(call, team, index, exists ? n : 0);
    const RowSlopes slopes = row_slopes(call, team, row, inverse_count, shared);
    bf16* const dx_row = static_cast<bf16*>(call.dx.data) + call.rows.at(index, n);
    write_gradient(call, team, row, slopes, dx_row, sums);
  }
  write_column_sums(team, n, sums.weight, call.partial(false), columns);
  if constexpr (kLayer) {
    write_column_sums(team, n, sums.bias, call.partial(true), columns);
  }
}

}  // namespace fp8train::ops::cuda
