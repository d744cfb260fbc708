#pragma once
// Kernels of RMSNorm and LayerNorm over rows, which may be slices (heads) of wider rows. A block
// takes a batch of rows at once into shared memory, sixteen threads add up a row in the order of
// the cpu's sixteen lanes, then all threads write. Sums over rows go over chunks of 64 rows, in
// order. So the bits are the cpu's. Rows that are too long for shared memory or not aligned are
// read in place. Only for .cu files.

#include "ops/cuda/code_tile.h"

namespace fp8train::ops::cuda {

constexpr int kNormLanes = 16;      // of a sum over a row: part of its definition
constexpr int64_t kNormChunk = 64;  // rows of one partial sum of a weight gradient: likewise
constexpr int kNormPack = 8;        // elements of one thread
constexpr int kNormGroups = kBlock / kNormLanes;  // rows that a block adds up at a time
constexpr int kNormBatch = 64;                    // most rows of a batch

/// Where row r = (p, h) of n elements lies: head h of `heads` in position p of `stride` elements.
struct NormRows {
  int64_t stride;
  int heads;

  FP8TRAIN_HD int64_t at(int64_t row, int n) const {
    return heads == 1 ? row * stride : row / heads * stride + row % heads * n;
  }
};

struct NormStatistics {
  float mean, rstd;
};

/// N elements as fp32, in accesses of 16 bytes at most.
template <int N, typename T>
__device__ __forceinline__ void load_values(const T* from, float* values) {
  constexpr int kWide = 16 / static_cast<int>(sizeof(T));
  constexpr int kStep = N < kWide ? N : kWide;
#pragma unroll
  for (int i = 0; i < N; i += kStep) {
    const Pack<T, kStep> pack = load_pack<kStep>(from + i);
#pragma unroll
    for (int j = 0; j < kStep; ++j) {
      values[i + j] = load_as_float(&pack.values[j]);
    }
  }
}
template <int N, typename T>
__device__ __forceinline__ void store_values(T* to, const float* values) {
  constexpr int kWide = 16 / static_cast<int>(sizeof(T));
  constexpr int kStep = N < kWide ? N : kWide;
#pragma unroll
  for (int i = 0; i < N; i += kStep) {
    Pack<T, kStep> pack;
#pragma unroll
    for (int j = 0; j < kStep; ++j) {
      store_from_float(&pack.values[j], values[i + j]);
    }
    store_pack(to + i, pack);
  }
}

/// Rows first .. first + count as they lie in memory into shared [count, n].
template <typename T>
__device__ __forceinline__ void stage_rows(const T* from, NormRows rows, int64_t first, int count,
                                           int n, T* staged) {
  constexpr int kWide = 16 / static_cast<int>(sizeof(T));
  const int packs = n / kWide;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < count * packs; i += kBlock) {
    const int r = i / packs;
    const int c = (i - r * packs) * kWide;
    store_pack(staged + r * n + c, load_pack<kWide>(from + rows.at(first + r, n) + c));
  }
}

/// Sum over i of term(i), i = 0 .. n - 1, by sixteen threads, which all get it: lane i % 16 adds
/// its terms in order, then the lanes are folded in halves. All lanes of the warp take part.
template <typename Term>
__device__ __forceinline__ float lane_sum(int n, Term term) {
  float sum = 0.0F;
#pragma unroll 8
  for (int i = static_cast<int>(threadIdx.x) % kNormLanes; i < n; i += kNormLanes) {
    sum += term(i);
  }
  for (int bits = kNormLanes / 2; bits > 0; bits /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, bits);
  }
  return sum;
}

__device__ __forceinline__ float reciprocal_root(float mean_square, float eps) {
  return 1.0F / sqrtf(mean_square + eps);
}

template <typename X, typename Y>
struct NormForward {
  const X* x;
  NormRows x_rows;
  const float* weight;
  const float* bias;  ///< may be null
  float eps;
  Y* y;  ///< may be x; null: only the statistics are wanted
  NormRows y_rows;
  X* original;  ///< a packed copy of x; may be null
  float* mean;  ///< LayerNorm only
  float* rstd;
  float* amax;  ///< max |y| is combined into it; may be null
  int64_t rows;
  int n;
  int batch;
};

template <bool kLayer, typename X>
__device__ __forceinline__ NormStatistics row_statistics(const X* x, int n, int length, float eps) {
  const float count = static_cast<float>(n);
  const float mean =
      kLayer ? lane_sum(length, [=](int i) { return load_as_float(x + i); }) / count : 0.0F;
  const float square_sum = lane_sum(length, [=](int i) {
    const float value = kLayer ? load_as_float(x + i) - mean : load_as_float(x + i);
    return value * value;
  });
  return {mean, reciprocal_root(square_sum / count, eps)};
}

template <bool kStaged, bool kLayer, typename X, typename Y>
__global__ void __launch_bounds__(kBlock, 4) norm_forward_kernel(NormForward<X, Y> call) {
  constexpr int N = kStaged ? kNormPack : 1;
  FP8TRAIN_SHARED_DYNAMIC(X, staged);
  FP8TRAIN_SHARED_ARRAY(NormStatistics, statistics, kNormBatch);
  const int n = call.n;
  const int64_t first = int64_t{blockIdx.x} * call.batch;
  const int64_t left = call.rows - first;
  const int count = static_cast<int>(left < call.batch ? left : call.batch);
  const auto row_of = [&](int r) -> const X* {
    return kStaged ? staged + r * n : call.x + call.x_rows.at(first + r, n);
  };
  if (kStaged) {
    stage_rows(call.x, call.x_rows, first, count, n, staged);
    __syncthreads();
  }
  for (int base = 0; base < count; base += kNormGroups) {
    const int r = base + static_cast<int>(threadIdx.x) / kNormLanes;
    const NormStatistics row =
        row_statistics<kLayer>(row_of(r < count ? r : 0), n, r < count ? n : 0, call.eps);
    if (r < count && threadIdx.x % kNormLanes == 0) {
      statistics[r] = row;
      call.rstd[first + r] = row.rstd;
      if (kLayer) {
        call.mean[first + r] = row.mean;
      }
    }
  }
  if (call.y == nullptr) {
    return;
  }
  __syncthreads();
  uint32_t largest = 0;  // magnitude before it is rounded to Y: rounding keeps the order
  const int packs = n / N;
  for (int i = static_cast<int>(threadIdx.x); i < count * packs; i += kBlock) {
    const int r = i / packs;
    const int c = (i - r * packs) * N;
    float x[N], weight[N], out[N];
    load_values<N>(row_of(r) + c, x);
    load_values<N>(call.weight + c, weight);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      out[j] = (kLayer ? x[j] - statistics[r].mean : x[j]) * statistics[r].rstd * weight[j];
    }
    if (kLayer && call.bias != nullptr) {
      float bias[N];
      load_values<N>(call.bias + c, bias);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        out[j] += bias[j];
      }
    }
    if (call.original != nullptr) {
      store_values<N>(call.original + (first + r) * n + c, x);
    }
    store_values<N>(call.y + call.y_rows.at(first + r, n) + c, out);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      largest = Largest{}(largest, bits_of(out[j]) & 0x7FFFFFFFU);
    }
  }
  if (call.amax != nullptr) {
    FP8TRAIN_SHARED_ARRAY(uint32_t, shared, kBlock / kWarp);
    Y rounded;
    store_from_float(&rounded, float_of(largest));
    raise_amax(call.amax, max_magnitude(load_as_float(&rounded), 0.0F), shared);
  }
}

template <typename Dy, typename X>
struct NormBackward {
  const Dy* dy;
  NormRows dy_rows;
  const X* x;  ///< packed
  const float* weight;
  const float* mean;  ///< LayerNorm only
  const float* rstd;
  void* dx;  ///< of Dx; may be dy where the types agree
  NormRows dx_rows;
  bool accumulate;
  float* weight_partial;  ///< [chunks, n]
  float* bias_partial;    ///< likewise; LayerNorm only
  int64_t rows;
  int64_t chunk_rows;
  int n;
  int batch;
};

struct NormProjection {
  float gradient_mean, mean;
  NormStatistics row;
};

template <bool kLayer>
__device__ __forceinline__ float normalized(float x, NormStatistics row) {
  return (kLayer ? x - row.mean : x) * row.rstd;
}

template <bool kLayer, typename Dy, typename X>
__device__ __forceinline__ NormProjection project_row(const Dy* dy, const X* x, const float* weight,
                                                      NormStatistics row, int n, int length) {
  const float count = static_cast<float>(n);
  const float gradient_sum =
      kLayer ? lane_sum(length, [=](int i) { return load_as_float(dy + i) * weight[i]; }) : 0.0F;
  const float projection = lane_sum(length, [=](int i) {
    return load_as_float(dy + i) * weight[i] * normalized<kLayer>(load_as_float(x + i), row);
  });
  return {gradient_sum / count, projection / count, row};
}

/// One block works on one chunk of rows, a batch at a time.
template <bool kStaged, bool kLayer, typename Dy, typename X, typename Dx>
__global__ void __launch_bounds__(kBlock, 2) norm_backward_kernel(NormBackward<Dy, X> call) {
  constexpr int N = kStaged ? kNormPack : 1;
  FP8TRAIN_SHARED_DYNAMIC(X, staged_x);
  FP8TRAIN_SHARED_ARRAY(NormProjection, projections, kNormBatch);
  const int n = call.n;
  Dy* const staged_dy = reinterpret_cast<Dy*>(staged_x + call.batch * n);
  const int64_t begin = blockIdx.x * call.chunk_rows;
  const int64_t chunk_end = begin + call.chunk_rows;
  const int64_t end = chunk_end < call.rows ? chunk_end : call.rows;
  const int64_t partial = int64_t{blockIdx.x} * n;
  for (int64_t first = begin; first < end; first += call.batch) {
    const int count = static_cast<int>(end - first < call.batch ? end - first : call.batch);
    const auto x_of = [&](int r) -> const X* {
      return kStaged ? staged_x + r * n : call.x + (first + r) * n;
    };
    const auto dy_of = [&](int r) -> const Dy* {
      return kStaged ? staged_dy + r * n : call.dy + call.dy_rows.at(first + r, n);
    };
    if (kStaged) {
      stage_rows(call.x, {n, 1}, first, count, n, staged_x);
      stage_rows(call.dy, call.dy_rows, first, count, n, staged_dy);
      __syncthreads();
    }
    for (int base = 0; base < count; base += kNormGroups) {
      const int r = base + static_cast<int>(threadIdx.x) / kNormLanes;
      const int safe = r < count ? r : 0;
      const NormStatistics row = {kLayer ? call.mean[first + safe] : 0.0F, call.rstd[first + safe]};
      const NormProjection projection =
          project_row<kLayer>(dy_of(safe), x_of(safe), call.weight, row, n, r < count ? n : 0);
      if (r < count && threadIdx.x % kNormLanes == 0) {
        projections[r] = projection;
      }
    }
    __syncthreads();
    // Before dx is written, which may lie where dy is read.
    for (int c = static_cast<int>(threadIdx.x); c < n; c += kBlock) {
      float weight_sum = first == begin ? 0.0F : call.weight_partial[partial + c];
      float bias_sum = kLayer && first != begin ? call.bias_partial[partial + c] : 0.0F;
#pragma unroll 4
      for (int r = 0; r < count; ++r) {
        const float gradient = load_as_float(dy_of(r) + c);
        weight_sum += gradient * normalized<kLayer>(load_as_float(x_of(r) + c), projections[r].row);
        bias_sum += gradient;
      }
      call.weight_partial[partial + c] = weight_sum;
      if (kLayer) {
        call.bias_partial[partial + c] = bias_sum;
      }
    }
    if (!kStaged) {
      __syncthreads();
    }
    const int packs = n / N;
    for (int i = static_cast<int>(threadIdx.x); i < count * packs; i += kBlock) {
      const int r = i / packs;
      const int c = (i - r * packs) * N;
      const NormProjection p = projections[r];
      Dx* const to = static_cast<Dx*>(call.dx) + call.dx_rows.at(first + r, n) + c;
      float gradient[N], x[N], weight[N], out[N];
      load_values<N>(dy_of(r) + c, gradient);
      load_values<N>(x_of(r) + c, x);
      load_values<N>(call.weight + c, weight);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float scaled = gradient[j] * weight[j];
        const float centered = kLayer ? scaled - p.gradient_mean : scaled;
        out[j] = p.row.rstd * (centered - normalized<kLayer>(x[j], p.row) * p.mean);
      }
      if (call.accumulate) {
        float before[N];
        load_values<N>(to, before);
#pragma unroll
        for (int j = 0; j < N; ++j) {
          out[j] = before[j] + out[j];
        }
      }
      store_values<N>(to, out);
    }
    __syncthreads();
  }
}

}  // namespace fp8train::ops::cuda
