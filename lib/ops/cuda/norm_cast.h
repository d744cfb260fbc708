#pragma once
// The results of norms as values that are cast where they are made. Only for .cu files.

#include "ops/cuda/cast_tiles.h"

namespace fp8train::ops::cuda {

/// Rows of a norm whose statistics are known: (x - mean) * rstd * weight (+ bias), rounded to Y.
/// Subtracting the mean 0 of RMSNorm leaves every bit.
template <typename X, typename Y>
struct NormSource {
  using Value = Y;
  static constexpr int kParts = 1;
  const X* __restrict__ x;
  const float* __restrict__ weight;
  const float* __restrict__ bias;  ///< may be null
  const float* __restrict__ mean;  ///< null: RMSNorm
  const float* __restrict__ rstd;
  int64_t width;

  template <bool Packed, bool Counted>
  static constexpr int blocks() {
    return sizeof(X) == 4 ? 1 : kMadeTileBlocks<Packed, Counted, Y>;
  }
  template <bool Packed>
  __device__ __forceinline__ Octet<Y> octet(int /*part*/, int64_t row, int64_t column,
                                            int64_t available) const {
    if (available <= 0) {
      return {};
    }
    float values[kOctet];
    float factors[kOctet];
    octet_values(load_octet<Packed>(x + row * width + column, available), values);
    octet_values(load_octet<Packed>(weight + column, available), factors);
    const float row_mean = mean == nullptr ? 0.0F : mean[row];
    const float row_rstd = rstd[row];
#pragma unroll
    for (int i = 0; i < kOctet; ++i) {
      values[i] = (values[i] - row_mean) * row_rstd * factors[i];
    }
    if (bias != nullptr) {
      float offsets[kOctet];
      octet_values(load_octet<Packed>(bias + column, available), offsets);
#pragma unroll
      for (int i = 0; i < kOctet; ++i) {
        values[i] += offsets[i];
      }
    }
    return octet_of<Y>(values, available);
  }
};

}  // namespace fp8train::ops::cuda
