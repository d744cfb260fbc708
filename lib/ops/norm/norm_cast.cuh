#pragma once
// The results of norms as values that are cast where they are made. Only for .cu files.

#include "ops/norm/norm_any.cuh"

namespace fp8train::ops::cuda {

/// Rows of bf16 whose statistics are known, rounded to bf16.
struct NormSource {
  using Value = bf16;
  static constexpr int kParts = 1;
  static constexpr int kBlocks = 2;
  const bf16* __restrict__ x;
  const float* __restrict__ weight;
  const float* __restrict__ bias;  ///< may be null
  const float* __restrict__ mean;  ///< null: RMSNorm
  const float* __restrict__ rstd;
  int64_t width;

  template <bool Packed>
  __device__ __forceinline__ Vec8<bf16> vec(int64_t row, int64_t column, int64_t available) const {
    if (available <= 0) {
      return {};
    }
    float values[kVec8];
    vec8_values(load_vec8<Packed>(x + row * width + column, available), values);
    scale_values<Packed>({mean == nullptr ? 0.0F : mean[row], rstd[row]}, weight, bias, column,
                         available, values);
    return vec8_of<bf16>(values, available);
  }
};

/// Rows of any type, rounded to any type; both are chosen when the kernel runs.
struct AnyNormSource {
  using Value = float;
  static constexpr int kParts = 1;
  static constexpr int kBlocks = 1;
  void* x;
  DType x_type, y_type;
  const float* weight;
  const float* bias;               ///< may be null
  const float* __restrict__ mean;  ///< null: RMSNorm
  const float* __restrict__ rstd;
  int64_t width;

  template <bool Packed>
  __device__ __forceinline__ Vec8<float> vec(int64_t row, int64_t column, int64_t available) const {
    if (available <= 0) {
      return {};
    }
    const int count = available < kVec8 ? static_cast<int>(available) : kVec8;
    float values[kVec8];
    AnyRow{x, x_type, row * width, Packed}.load(static_cast<int>(column), count, values);
    scale_values<Packed>({mean == nullptr ? 0.0F : mean[row], rstd[row]}, weight, bias, column,
                         count, values);
    round_to_type(y_type, values);
    return vec8_of<float>(values, available);
  }
};

}  // namespace fp8train::ops::cuda
