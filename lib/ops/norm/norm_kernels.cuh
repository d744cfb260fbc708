#pragma once
// Code that the kernels of RMSNorm and LayerNorm share. They go over rows, which may be slices
// (heads) of wider rows. Rows of bf16 that lie in packs of 16 bytes are held in registers
// (norm_forward.cuh, norm_backward.cuh): a team of threads has a row, a block several teams. All
// other rows take the kernels of norm_any.cuh. Sums over a row are trees over its team, sums over
// rows go over the rows of a chunk in order, then over teams and chunks: results repeat bitwise and
// are the cpu's up to rounding. Only for .cu files.

#include "ops/cast/cast_tiles.cuh"
#include "ops/norm/norm.h"

namespace fp8train::ops::cuda {

constexpr int kNormThreads = 256;      ///< of a block with several teams
constexpr int kNormMostThreads = 512;  ///< of a team

/// The arguments of a forward kernel: `count` rows of n elements. Without y only the statistics are
/// wanted.
struct NormForwardRows : NormForward {
  int64_t count;
  int n;

  explicit NormForwardRows(const NormForward& norm)
      : NormForward(norm), count(x.shape.rows()), n(static_cast<int>(x.shape.back())) {
    rows = rows.or_packed(n);
  }
  __device__ __forceinline__ const float* weights() const {
    return static_cast<const float*>(weight.data);
  }
  __device__ __forceinline__ const float* biases() const {
    return static_cast<const float*>(bias.data);
  }
  __device__ __forceinline__ void store(int64_t row, bool layer, float row_mean,
                                        float row_rstd) const {
    static_cast<float*>(rstd.data)[row] = row_rstd;
    if (layer) {
      static_cast<float*>(mean.data)[row] = row_mean;
    }
  }
};

/// The arguments of a backward kernel, a block for each chunk_rows rows: `count` rows of n
/// elements.
struct NormBackwardRows : NormBackward {
  int64_t count, chunk_rows;
  int n;

  explicit NormBackwardRows(const NormBackward& norm)
      : NormBackward(norm), count(x.shape.rows()), n(static_cast<int>(x.shape.back())) {
    rows = rows.or_packed(n);
    chunk_rows = norm_chunk_rows(count / rows.heads) * rows.heads;
  }
  __device__ __forceinline__ const float* weights() const {
    return static_cast<const float*>(weight.data);
  }
  __device__ __forceinline__ const float* means() const {
    return static_cast<const float*>(mean.data);
  }
  __device__ __forceinline__ const float* rstds() const {
    return static_cast<const float*>(rstd.data);
  }
  /// The block's sums over rows for the weight, or for LayerNorm's bias.
  __device__ __forceinline__ float* partial(bool of_bias) const {
    return static_cast<float*>(scratch.data) +
           ((of_bias ? int64_t{gridDim.x} : 0) + blockIdx.x) * n;
  }
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

/// The statistics of a row; RMSNorm has no mean.
struct RowStatistics {
  float mean, rstd;
};

/// values = (values - mean) * rstd * weight + bias for the eight columns from `column` on, of which
/// `available` exist; `bias` may be null. Subtracting the mean 0 of RMSNorm changes no bit.
template <bool Packed>
__device__ __forceinline__ void scale_values(const RowStatistics& row, const float* weight,
                                             const float* bias, int64_t column, int64_t available,
                                             float (&values)[kVec8]) {
  float factors[kVec8];
  load_values<kVec8, Packed>(weight + column, factors, available);
#pragma unroll
  for (int j = 0; j < kVec8; ++j) {
    values[j] = (values[j] - row.mean) * row.rstd * factors[j];
  }
  if (bias != nullptr) {
    load_values<kVec8, Packed>(bias + column, factors, available);
#pragma unroll
    for (int j = 0; j < kVec8; ++j) {
      values[j] += factors[j];
    }
  }
}

/// Returns the statistics of a row that a team's threads share. for_each_eight(body) calls
/// body(how many of eight there are, values) for a thread's own, with zeros for others.
template <typename ForEachEight>
__device__ __forceinline__ RowStatistics row_statistics(bool layer, const Team& team,
                                                        float inverse_count, float eps,
                                                        float* shared,
                                                        ForEachEight for_each_eight) {
  float sum = 0.0F;
  float square_sum = 0.0F;
  for_each_eight([&](int /*available*/, const float(&values)[kVec8]) {
#pragma unroll
    for (int j = 0; j < kVec8; ++j) {
      if (layer) {
        sum += values[j];
      } else {
        square_sum = fmaf(values[j], values[j], square_sum);
      }
    }
  });
  const float mean = layer ? team.sum(sum, shared) * inverse_count : 0.0F;
  if (layer) {
    for_each_eight([&](int available, const float(&values)[kVec8]) {
#pragma unroll
      for (int j = 0; j < kVec8; ++j) {
        const float value = j < available ? values[j] - mean : 0.0F;
        square_sum = fmaf(value, value, square_sum);
      }
    });
  }
  return {mean, rsqrtf(fmaf(team.sum(square_sum, shared), inverse_count, eps))};
}

/// The terms that every dx of a row subtracts: mean(g), and mean(g * xhat) as a factor of x.
struct RowSlopes {
  float gradient_mean, slope;
};

}  // namespace fp8train::ops::cuda
