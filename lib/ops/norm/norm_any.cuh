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
  const AnyRow delta = {const_cast<void*>(call.delta), call.x_type, at, x.packed};
  const AnyRow sum = {call.sum, call.x_type, at, x.packed};
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

/// Computes what norm_forward_kernel computes; call.mean == null: RMSNorm.
__global__ void __launch_bounds__(kNormThreads)
    norm_forward_any_kernel(NormForwardRows call, bool packed) {
  FP8TRAIN_SHARED_ARRAY(float, shared, kNormThreads / kWarp);
  const Team team(static_cast<int>(blockDim.x));
  const int n = call.n;
  const float inverse_count = 1.0F / static_cast<float>(n);
  const AnyRow weights = {const_cast<float*>(call.weight), DType::f32, 0, packed};
  const AnyRow biases = {const_cast<float*>(call.bias), DType::f32, 0, packed};
  float largest = 0.0F;
  for (int64_t row = blockIdx.x; row < call.rows; row += gridDim.x) {
    AnyRow x = {const_cast<void*>(call.x), call.x_type, call.x_rows.at(row, n), packed};
    if (call.delta != nullptr) {
      x = add_residual_any(call, x, row * n);
    }
    float mean = 0.0F;
    if (call.mean != nullptr) {
      float sum = 0.0F;
      for_each_eight(n, [&](int column, int available) {
        float values[kVec8];
        x.load(column, available, values);
#pragma unroll
        for (int j = 0; j < kVec8; ++j) {
          sum += values[j];
        }
      });
      mean = team.sum(sum, shared) * inverse_count;
    }
    float square_sum = 0.0F;
    for_each_eight(n, [&](int column, int available) {
      float values[kVec8];
      x.load(column, available, values);
#pragma unroll
      for (int j = 0; j < kVec8; ++j) {
        const float value = j < available ? values[j] - mean : 0.0F;
        square_sum = fmaf(value, value, square_sum);
      }
    });
    const float rstd = rsqrtf(fmaf(team.sum(square_sum, shared), inverse_count, call.eps));
    if (threadIdx.x == 0) {
      call.rstd[row] = rstd;
      if (call.mean != nullptr) {
        call.mean[row] = mean;
      }
    }
    if (call.y == nullptr) {
      continue;
    }
    const AnyRow y = {call.y, call.y_type, call.y_rows.at(row, n), packed};
    const AnyRow original = {call.original, call.x_type, row * n, packed};
    for_each_eight(n, [&](int column, int available) {
      float values[kVec8], factors[kVec8];
      x.load(column, available, values);
      if (call.original != nullptr) {
        original.store(column, available, values);
      }
      weights.load(column, available, factors);
#pragma unroll
      for (int j = 0; j < kVec8; ++j) {
        values[j] = (values[j] - mean) * rstd * factors[j];
      }
      if (call.bias != nullptr) {
        biases.load(column, available, factors);
#pragma unroll
        for (int j = 0; j < kVec8; ++j) {
          values[j] += factors[j];
        }
      }
      y.store(column, available, values);
#pragma unroll
      for (int j = 0; j < kVec8; ++j) {
        largest = j < available ? max_magnitude(largest, values[j]) : largest;
      }
    });
  }
  if (call.amax != nullptr) {
    // Rounding to the type of y keeps the order.
    float rounded[2] = {largest, 0.0F};
    round_to_type(call.y_type, rounded);
    raise_block_amax(call.amax, max_magnitude(rounded[0], 0.0F), shared);
  }
}

/// Computes what norm_backward_kernel computes: one block works on one chunk of rows. The sums of
/// columns, [n] and for LayerNorm [n] more, are in shared memory where they fit (`in_shared`), else
/// where the partial sums go.
__global__ void __launch_bounds__(kNormThreads, 4)
    norm_backward_any_kernel(NormBackwardRows call, bool packed, bool in_shared) {
  FP8TRAIN_SHARED_DYNAMIC(float, columns);
  FP8TRAIN_SHARED_ARRAY(float, shared, kNormThreads / kWarp);
  const Team team(static_cast<int>(blockDim.x));
  const bool layer = call.mean != nullptr;
  const int n = call.n;
  const float inverse_count = 1.0F / static_cast<float>(n);
  const int64_t begin = blockIdx.x * call.chunk_rows;
  const int64_t chunk_end = begin + call.chunk_rows;
  const int64_t end = chunk_end < call.rows ? chunk_end : call.rows;
  float* const weight_partial = call.weight_partial + int64_t{blockIdx.x} * n;
  float* const bias_partial = layer ? call.bias_partial + int64_t{blockIdx.x} * n : nullptr;
  float* const weight_sums = in_shared ? columns : weight_partial;
  float* const bias_sums = in_shared ? columns + n : bias_partial;
  const AnyRow weights = {const_cast<float*>(call.weight), DType::f32, 0, packed};
  for_each_eight(n, [&](int column, int available) {
    for (int j = 0; j < available; ++j) {
      weight_sums[column + j] = 0.0F;
      if (layer) {
        bias_sums[column + j] = 0.0F;
      }
    }
  });
#pragma unroll 1
  for (int64_t row = begin; row < end; ++row) {
    const AnyRow x = {const_cast<void*>(call.x), call.x_type, row * n, packed};
    const AnyRow dy = {const_cast<void*>(call.dy), call.dy_type, call.dy_rows.at(row, n), packed};
    const AnyRow dx = {call.dx, call.dx_type, call.dx_rows.at(row, n), packed};
    const float rstd = call.rstd[row];
    const float mean = layer ? call.mean[row] : 0.0F;
    float gradient_sum = 0.0F;
    float projection = 0.0F;
    for_each_eight(n, [&](int column, int available) {
      float values[kVec8], gradient[kVec8], weight[kVec8];
      x.load(column, available, values);
      dy.load(column, available, gradient);
      weights.load(column, available, weight);
#pragma unroll
      for (int j = 0; j < kVec8; ++j) {
        const float scaled = gradient[j] * weight[j];  // zero where there is none
        projection = fmaf(scaled, values[j] - mean, projection);
        gradient_sum += scaled;
      }
    });
    const float gradient_mean = layer ? team.sum(gradient_sum, shared) * inverse_count : 0.0F;
    const float slope = team.sum(projection, shared) * inverse_count * rstd * rstd;
    for_each_eight(n, [&](int column, int available) {
      float values[kVec8], gradient[kVec8], weight[kVec8];
      x.load(column, available, values);
      dy.load(column, available, gradient);
      weights.load(column, available, weight);
#pragma unroll
      for (int j = 0; j < kVec8; ++j) {
        const float value = values[j] - mean;
        if (j < available) {
          weight_sums[column + j] = fmaf(gradient[j], value * rstd, weight_sums[column + j]);
          if (layer) {
            bias_sums[column + j] += gradient[j];
          }
        }
        values[j] = rstd * fmaf(-value, slope, fmaf(gradient[j], weight[j], -gradient_mean));
      }
      if (call.accumulate) {
        float before[kVec8];
        dx.load(column, available, before);
#pragma unroll
        for (int j = 0; j < kVec8; ++j) {
          values[j] += before[j];
        }
      }
      dx.store(column, available, values);
    });
  }
  if (in_shared) {
    for_each_eight(n, [&](int column, int available) {
      for (int j = 0; j < available; ++j) {
        weight_partial[column + j] = weight_sums[column + j];
        if (layer) {
          bias_partial[column + j] = bias_sums[column + j];
        }
      }
    });
  }
}

}  // namespace fp8train::ops::cuda
