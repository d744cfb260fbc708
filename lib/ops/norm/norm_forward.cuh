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
  const bf16* const delta_row =
      static_cast<const bf16*>(call.residual.delta.data) + (length == 0 ? 0 : at);
  bf16* const sum_row = static_cast<bf16*>(call.residual.sum.data) + (length == 0 ? 0 : at);
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

/// Returns the norm of a pack of a row that starts at `column`.
template <bool kLayer>
__device__ __forceinline__ Vec8<bf16> normed(const NormForwardRows& call, int column,
                                             const Vec8<bf16>& x, const RowStatistics& statistics) {
  float values[kVec8];
  vec8_values(x, values);
  scale_values<true>({kLayer ? statistics.mean : 0.0F, statistics.rstd}, call.weights(),
                     kLayer ? call.biases() : nullptr, column, kVec8, values);
  return vec8_of<bf16>(values, kVec8);
}

/// Writes the results of a team's row, and a copy of what it was made from where one is wanted.
template <bool kLayer>
__device__ __forceinline__ void write_row(const NormForwardRows& call, const Team& team,
                                          int64_t row, const Vec8<bf16> (&x)[kForwardVecs],
                                          const RowStatistics& statistics,
                                          AmaxBits<bf16>& amax_bits) {
  const int n = call.n;
  bf16* const y_row = static_cast<bf16*>(call.y.data) + call.rows.at(row, n);
#pragma unroll
  for (int v = 0; v < kForwardVecs; ++v) {
    const int column = (team.lane + v * team.size) * kVec8;
    if (column >= n) {
      continue;
    }
    const Vec8<bf16> y = normed<kLayer>(call, column, x[v], statistics);
    if (call.original.data != nullptr) {
      store_vec8<true>(static_cast<bf16*>(call.original.data) + row * n + column, x[v], kVec8);
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
  load_row(team, static_cast<const bf16*>(call.x.data) + call.rows.at(exists ? row : 0, n), length,
           x);
  if (call.residual.delta.data != nullptr) {
    add_residual(call, team, row * n, length, x);
  }
  const RowStatistics statistics =
      row_statistics(kLayer, team, 1.0F / static_cast<float>(n), call.eps, shared, [&](auto body) {
#pragma unroll
        for (int v = 0; v < kForwardVecs; ++v) {
          float values[kVec8];
          vec8_values(x[v], values);
          body((team.lane + v * team.size) * kVec8 < length ? kVec8 : 0, values);
        }
      });
  if (exists && team.lane == 0) {
    call.store(row, kLayer, statistics.mean, statistics.rstd);
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
  for (int64_t first = int64_t{blockIdx.x} * team.count(); first < call.count; first += stride) {
    const int64_t row = first + team.index;
    const bool exists = row < call.count;
    Vec8<bf16> x[kForwardVecs];
    const RowStatistics statistics = read_row<kLayer>(call, team, row, exists, x, shared);
    if (call.y.data == nullptr || !exists) {
      continue;
    }
    write_row<kLayer>(call, team, row, x, statistics, amax_bits);
  }
  if (call.cast.amax != nullptr) {
    raise_block_amax(call.cast.amax, amax_bits.value(), shared);
  }
}

}  // namespace fp8train::ops::cuda
