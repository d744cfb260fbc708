#pragma once
// The results of norms as values that are cast where they are made. Only for .cu files.

#include "ops/norm/norm_any.cuh"

namespace fp8train::ops::cuda {

/// values = (values - mean) * rstd * weight, in the order of norm_forward_kernel. Subtracting the
/// mean 0 of RMSNorm changes no bit.
__device__ __forceinline__ void scale_row(float mean, float rstd, const float (&weight)[kVec8],
                                          float (&values)[kVec8]) {
#pragma unroll
  for (int i = 0; i < kVec8; ++i) {
    values[i] = (values[i] - mean) * rstd * weight[i];
  }
}

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
    float factors[kVec8];
    vec8_values(load_vec8<Packed>(x + row * width + column, available), values);
    vec8_values(load_vec8<Packed>(weight + column, available), factors);
    scale_row(mean == nullptr ? 0.0F : mean[row], rstd[row], factors, values);
    if (bias != nullptr) {
      float offsets[kVec8];
      vec8_values(load_vec8<Packed>(bias + column, available), offsets);
#pragma unroll
      for (int i = 0; i < kVec8; ++i) {
        values[i] += offsets[i];
      }
    }
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
  float* weight;
  float* bias;                     ///< may be null
  const float* __restrict__ mean;  ///< null: RMSNorm
  const float* __restrict__ rstd;
  int64_t width;

  template <bool Packed>
  __device__ __forceinline__ Vec8<float> vec(int64_t row, int64_t column, int64_t available) const {
    if (available <= 0) {
      return {};
    }
    const int count = available < kVec8 ? static_cast<int>(available) : kVec8;
    const int first = static_cast<int>(column);
    float values[kVec8];
    float factors[kVec8];
    AnyRow{x, x_type, row * width, Packed}.load(first, count, values);
    AnyRow{weight, DType::f32, 0, Packed}.load(first, count, factors);
    scale_row(mean == nullptr ? 0.0F : mean[row], rstd[row], factors, values);
    if (bias != nullptr) {
      AnyRow{bias, DType::f32, 0, Packed}.load(first, count, factors);
#pragma unroll
      for (int i = 0; i < kVec8; ++i) {
        values[i] += factors[i];
      }
    }
    round_to_type(y_type, values);
    return vec8_of<float>(values, available);
  }
};

}  // namespace fp8train::ops::cuda
