#pragma once
// The kernels of norms for rows of any type, width and alignment, where nothing needs to be fast:
// types are chosen when they run, a block has a row at a time and reads it as often as it needs it.
// Only for .cu files.

#include "ops/norm/norm_kernels.cuh"

namespace fp8train::ops::cuda {

/// Up to eight elements of a row that starts at element `at`. Packed: the row is aligned to 16
/// bytes and its width is a multiple of eight.
struct AnyRow {
  void* data;
  DType type;
  int64_t at;
  bool packed;

  /// Zeros from `available` on.
  __device__ __forceinline__ void load(int column, int available, float (&values)[kVec8]) const {
    switch (type) {
      case DType::f32:
        return load_from(static_cast<const float*>(data), column, available, values);
      case DType::bf16:
        return load_from(static_cast<const bf16*>(data), column, available, values);
      default:
        return load_from(static_cast<const f16*>(data), column, available, values);
    }
  }
  __device__ __forceinline__ void store(int column, int available,
                                        const float (&values)[kVec8]) const {
    switch (type) {
      case DType::f32:
        return store_to(static_cast<float*>(data), column, available, values);
      case DType::bf16:
        return store_to(static_cast<bf16*>(data), column, available, values);
      default:
        return store_to(static_cast<f16*>(data), column, available, values);
    }
  }

 private:
  template <typename T>
  __device__ __forceinline__ void load_from(const T* from, int column, int available,
                                            float (&values)[kVec8]) const {
    if (packed) {
      load_values<kVec8, true>(from + at + column, values, available);
    } else {
      load_values<kVec8, false>(from + at + column, values, available);
    }
  }
  template <typename T>
  __device__ __forceinline__ void store_to(T* to, int column, int available,
                                           const float (&values)[kVec8]) const {
    if (packed) {
      store_values<kVec8, true>(to + at + column, values, available);
    } else {
      store_values<kVec8, false>(to + at + column, values, available);
    }
  }
};

/// body(first column, how many of eight there are) for the columns of this thread, in order. The
/// block's threads share a row.
template <typename Body>
__device__ __forceinline__ void for_each_eight(int n, Body body) {
  const int stride = static_cast<int>(blockDim.x) * kVec8;
#pragma unroll 1
  for (int column = static_cast<int>(threadIdx.x) * kVec8; column < n; column += stride) {
    body(column, n - column < kVec8 ? n - column : kVec8);
  }
}

/// Writes x + delta to `sum` and returns that row. Each thread writes the columns that it reads.
__device__ __forceinline__ AnyRow add_residual_any(const NormForwardRows& call, const AnyRow& x,
                                                   int64_t at) {
  const AnyRow delta = {const_cast<void*>(call.residual.delta.data), call.x.dtype, at, x.packed};
  const AnyRow sum = {call.residual.sum.data, call.x.dtype, at, x.packed};
  for_each_eight(call.n, [&](int column, int available) {
    float values[kVec8], added[kVec8];
    x.load(column, available, values);
    delta.load(column, available, added);
#pragma unroll
    for (int j = 0; j < kVec8; ++j) {
      values[j] += added[j];
    }
    sum.store(column, available, values);
  });
  return sum;
}

/// Writes the results of a row, and a copy of what it was made from where one is wanted. Returns
/// the larger of `largest` and the results' magnitudes, before they are rounded.
__device__ __forceinline__ float write_row_any(const NormForwardRows& call, int64_t row,
                                               const AnyRow& x, const RowStatistics& statistics,
                                               float largest) {
  const AnyRow y = {call.y.data, call.y.dtype, call.rows.at(row, call.n), x.packed};
  const AnyRow original = {call.original.data, call.x.dtype, row * call.n, x.packed};
  for_each_eight(call.n, [&](int column, int available) {
    float values[kVec8];
    x.load(column, available, values);
    if (call.original.data != nullptr) {
      original.store(column, available, values);
    }
    if (x.packed) {
      scale_values<true>(statistics, call.weights(), call.biases(), column, available, values);
    } else {
      scale_values<false>(statistics, call.weights(), call.biases(), column, available, values);
    }
    y.store(column, available, values);
#pragma unroll
    for (int j = 0; j < kVec8; ++j) {
      largest = j < available ? max_magnitude(largest, values[j]) : largest;
    }
  });
  return largest;
}

/// Computes what norm_forward_kernel computes; without a mean: RMSNorm.
__global__ void __launch_bounds__(kNormThreads)
    norm_forward_any_kernel(NormForwardRows call, bool packed) {
  FP8TRAIN_SHARED_ARRAY(float, shared, kNormThreads / kWarp);
  const Team team(static_cast<int>(blockDim.x));
  const float inverse_count = 1.0F / static_cast<float>(call.n);
  float largest = 0.0F;
  for (int64_t row = blockIdx.x; row < call.count; row += gridDim.x) {
    AnyRow x = {const_cast<void*>(call.x.data), call.x.dtype, call.rows.at(row, call.n), packed};
    if (call.residual.delta.data != nullptr) {
      x = add_residual_any(call, x, row * call.n);
    }
    const RowStatistics statistics = row_statistics(
        call.mean.data != nullptr, team, inverse_count, call.eps, shared, [&](auto body) {
          for_each_eight(call.n, [&](int column, int available) {
            float values[kVec8];
            x.load(column, available, values);
            body(available, values);
          });
        });
    if (threadIdx.x == 0) {
      call.store(row, call.mean.data != nullptr, statistics.mean, statistics.rstd);
    }
    if (call.y.data == nullptr) {
      continue;
    }
    largest = write_row_any(call, row, x, statistics, largest);
  }
  if (call.cast.amax != nullptr) {
    // Rounding to the type of y keeps the order.
    float rounded[2] = {largest, 0.0F};
    round_to_type(call.y.dtype, rounded);
    raise_block_amax(call.cast.amax, max_magnitude(rounded[0], 0.0F), shared);
  }
}

/// A row in the backward pass.
struct AnyBackwardRow {
  AnyRow x, dy, dx, weights;
  RowStatistics statistics;

  __device__ __forceinline__ AnyBackwardRow(const NormBackwardRows& call, int64_t row, bool packed)
      : x{const_cast<void*>(call.x.data), call.x.dtype, row * call.n, packed},
        dy{const_cast<void*>(call.dy.data), call.dy.dtype, call.rows.at(row, call.n), packed},
        dx{call.dx.data, call.dx.dtype, call.rows.at(row, call.n), packed},
        weights{const_cast<float*>(call.weights()), DType::f32, 0, packed},
        statistics{call.means() != nullptr ? call.means()[row] : 0.0F, call.rstds()[row]} {}
};

/// Returns the slopes of a row that the block's threads share.
__device__ __forceinline__ RowSlopes row_slopes_any(const NormBackwardRows& call, const Team& team,
                                                    const AnyBackwardRow& row, float inverse_count,
                                                    float* shared) {
  float gradient_sum = 0.0F;
  float projection = 0.0F;
  for_each_eight(call.n, [&](int column, int available) {
    float values[kVec8], gradient[kVec8], weight[kVec8];
    row.x.load(column, available, values);
    row.dy.load(column, available, gradient);
    row.weights.load(column, available, weight);
#pragma unroll
    for (int j = 0; j < kVec8; ++j) {
      const float scaled = gradient[j] * weight[j];  // zero where there is none
      projection = fmaf(scaled, values[j] - row.statistics.mean, projection);
      gradient_sum += scaled;
    }
  });
  const float gradient_mean =
      call.mean.data != nullptr ? team.sum(gradient_sum, shared) * inverse_count : 0.0F;
  const float rstd = row.statistics.rstd;
  return {gradient_mean, team.sum(projection, shared) * inverse_count * rstd * rstd};
}

/// A block's sums over rows; `bias` is null for RMSNorm.
struct AnyColumnSums {
  float* weight;
  float* bias;

  /// Sets the columns of this thread to those of `from`, or to zeros if there is none.
  __device__ __forceinline__ void set(int n, const AnyColumnSums* from) const {
    for_each_eight(n, [&](int column, int available) {
      for (int j = 0; j < available; ++j) {
        weight[column + j] = from != nullptr ? from->weight[column + j] : 0.0F;
        if (bias != nullptr) {
          bias[column + j] = from != nullptr ? from->bias[column + j] : 0.0F;
        }
      }
    });
  }
};

/// Writes dx of a row, or adds it, and adds the row to the sums over rows.
__device__ __forceinline__ void write_gradient_any(const NormBackwardRows& call,
                                                   const AnyBackwardRow& row,
                                                   const RowSlopes& slopes,
                                                   const AnyColumnSums& sums) {
  for_each_eight(call.n, [&](int column, int available) {
    float values[kVec8], gradient[kVec8], weight[kVec8];
    row.x.load(column, available, values);
    row.dy.load(column, available, gradient);
    row.weights.load(column, available, weight);
#pragma unroll
    for (int j = 0; j < kVec8; ++j) {
      const float value = values[j] - row.statistics.mean;
      if (j < available) {
        sums.weight[column + j] =
            fmaf(gradient[j], value * row.statistics.rstd, sums.weight[column + j]);
        if (sums.bias != nullptr) {
          sums.bias[column + j] += gradient[j];
        }
      }
      values[j] = row.statistics.rstd *
                  fmaf(-value, slopes.slope, fmaf(gradient[j], weight[j], -slopes.gradient_mean));
    }
    if (call.accumulate) {
      float before[kVec8];
      row.dx.load(column, available, before);
#pragma unroll
      for (int j = 0; j < kVec8; ++j) {
        values[j] += before[j];
      }
    }
    row.dx.store(column, available, values);
  });
}

/// Computes what norm_backward_kernel computes: one block works on one chunk of rows. The sums of
/// columns, [n] and for LayerNorm [n] more, are in shared memory where they fit (`in_shared`), else
/// where the partial sums go.
__global__ void __launch_bounds__(kNormThreads, 4)
    norm_backward_any_kernel(NormBackwardRows call, bool packed, bool in_shared) {
  FP8TRAIN_SHARED_DYNAMIC(float, columns);
  FP8TRAIN_SHARED_ARRAY(float, shared, kNormThreads / kWarp);
  const Team team(static_cast<int>(blockDim.x));
  const bool layer = call.mean.data != nullptr;
  const int n = call.n;
  const float inverse_count = 1.0F / static_cast<float>(n);
  const int64_t begin = blockIdx.x * call.chunk_rows;
  const int64_t chunk_end = begin + call.chunk_rows;
  const int64_t end = chunk_end < call.count ? chunk_end : call.count;
  const AnyColumnSums partials = {call.partial(false), layer ? call.partial(true) : nullptr};
  const AnyColumnSums in_columns = {columns, layer ? columns + n : nullptr};
  const AnyColumnSums sums = in_shared ? in_columns : partials;
  sums.set(n, nullptr);
#pragma unroll 1
  for (int64_t row_index = begin; row_index < end; ++row_index) {
    const AnyBackwardRow row(call, row_index, packed);
    const RowSlopes slopes = row_slopes_any(call, team, row, inverse_count, shared);
    write_gradient_any(call, row, slopes, sums);
  }
  if (in_shared) {
    partials.set(n, &sums);
  }
}

}  // namespace fp8train::ops::cuda
