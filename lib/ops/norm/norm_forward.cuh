#pragma once
// The forward kernel of RMSNorm and LayerNorm for rows of bf16 in packs of 16 bytes, which a team
// of threads holds in registers. Only for .cu files.

#include "ops/norm/norm_kernels.cuh"

namespace fp8train::ops::cuda {

constexpr int kForwardVecs = 4;  ///< packs of eight elements that a thread holds of a row

/// Reads the packs of a row that a thread of the team holds: zeros from `length` on.
template <int kVecs>
__device__ __forceinline__ void load_row(const Team& team, const bf16* row, int length,
                                         Vec8<bf16> (&x)[kVecs]) {
#pragma unroll
  for (int v = 0; v < kVecs; ++v) {
    const int column = (team.lane + v * team.size) * kVec8;
    x[v] = load_vec8<true>(row + column, length - column);
  }
}

/// x = x + delta for the packs of a row that starts at element `at`, into `sum` too.
__device__ __forceinline__ void add_residual(const NormForwardRows& call, const Team& team,
                                             int64_t at, int length,
                                             Vec8<bf16> (&x)[kForwardVecs]) {
  const bf16* const delta_row = static_cast<const bf16*>(call.delta) + (length == 0 ? 0 : at);
  bf16* const sum_row = static_cast<bf16*>(call.sum) + (length == 0 ? 0 : at);
  Vec8<bf16> delta[kForwardVecs];
  load_row(team, delta_row, length, delta);
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

/// Returns the statistics of a team's row of `length` elements.
template <bool kLayer>
__device__ __forceinline__ RowStatistics row_statistics(const Team& team,
                                                        const Vec8<bf16> (&x)[kForwardVecs],
                                                        int length, float inverse_count, float eps,
                                                        float* shared) {
  float sum = 0.0F;
  float square_sum = 0.0F;
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
  return {mean, rsqrtf(fmaf(team.sum(square_sum, shared), inverse_count, eps))};
}

/// Returns the norm of a pack of a row that starts at `column`.
template <bool kLayer>
__device__ __forceinline__ Vec8<bf16> normed(const NormForwardRows& call, int column,
                                             const Vec8<bf16>& x, const RowStatistics& statistics) {
  float values[kVec8], weight[kVec8];
  vec8_values(x, values);
  load_values<kVec8, true>(call.weight + column, weight, kVec8);
#pragma unroll
  for (int j = 0; j < kVec8; ++j) {
    values[j] = centered<kLayer>(values[j], statistics.mean) * statistics.rstd * weight[j];
  }
  if (kLayer && call.bias != nullptr) {
    float bias[kVec8];
    load_values<kVec8, true>(call.bias + column, bias, kVec8);
#pragma unroll
    for (int j = 0; j < kVec8; ++j) {
      values[j] += bias[j];
    }
  }
  return vec8_of<bf16>(values, kVec8);
}

/// Writes the results of a team's row, and a copy of what it was made from where one is wanted.
template <bool kLayer>
__device__ __forceinline__ void write_row(const NormForwardRows& call, const Team& team,
                                          int64_t row, const Vec8<bf16> (&x)[kForwardVecs],
                                          const RowStatistics& statistics,
                                          AmaxBits<bf16>& amax_bits) {
  const int n = call.n;
  bf16* const y_row = static_cast<bf16*>(call.y) + call.y_rows.at(row, n);
#pragma unroll
  for (int v = 0; v < kForwardVecs; ++v) {
    const int column = (team.lane + v * team.size) * kVec8;
    if (column >= n) {
      continue;
    }
    const Vec8<bf16> y = normed<kLayer>(call, column, x[v], statistics);
    if (call.original != nullptr) {
      store_vec8<true>(static_cast<bf16*>(call.original) + row * n + column, x[v], kVec8);
    }
    amax_bits.add(y);
    store_vec8<true>(y_row + column, y, kVec8);
  }
}

/// Reads the packs of a row, if it exists, adds the residual, and stores the statistics that it
/// returns.
template <bool kLayer>
__device__ __forceinline__ RowStatistics read_row(const NormForwardRows& call, const Team& team,
                                                  int64_t row, bool exists,
                                                  Vec8<bf16> (&x)[kForwardVecs], float* shared) {
  const int n = call.n;
  const int length = exists ? n : 0;
  load_row(team, static_cast<const bf16*>(call.x) + call.x_rows.at(exists ? row : 0, n), length, x);
  if (call.delta != nullptr) {
    add_residual(call, team, row * n, length, x);
  }
  const RowStatistics statistics =
      row_statistics<kLayer>(team, x, length, 1.0F / static_cast<float>(n), call.eps, shared);
  if (exists && team.lane == 0) {
    call.rstd[row] = statistics.rstd;
    if (kLayer) {
      call.mean[row] = statistics.mean;
    }
  }
  return statistics;
}

/// A team has a row at a time.
template <bool kLayer>
__global__ void __launch_bounds__(kNormMostThreads)
    norm_forward_kernel(NormForwardRows call, int team_size) {
  FP8TRAIN_SHARED_ARRAY(float, shared, kNormMostThreads / kWarp);
  const Team team(team_size);
  AmaxBits<bf16> amax_bits;
  const int64_t stride = int64_t{gridDim.x} * team.count();
  for (int64_t first = int64_t{blockIdx.x} * team.count(); first < call.rows; first += stride) {
    const int64_t row = first + team.index;
    const bool exists = row < call.rows;
    Vec8<bf16> x[kForwardVecs];
    const RowStatistics statistics = read_row<kLayer>(call, team, row, exists, x, shared);
    if (call.y == nullptr || !exists) {
      continue;
    }
    write_row<kLayer>(call, team, row, x, statistics, amax_bits);
  }
  if (call.amax != nullptr) {
    raise_block_amax(call.amax, amax_bits.value(), shared);
  }
}

}  // namespace fp8train::ops::cuda
