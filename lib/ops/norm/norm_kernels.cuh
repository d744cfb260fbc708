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

/// The statistics of a row; RMSNorm has no mean.
struct RowStatistics {
  float mean, rstd;
};

/// The terms that every dx of a row subtracts: mean(g), and mean(g * xhat) as a factor of x.
struct RowSlopes {
  float gradient_mean, slope;
};

}  // namespace fp8train::ops::cuda
