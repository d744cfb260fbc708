#pragma once
// The random Hadamard transform of 16 values, which spreads an outlier over all of them before they
// are rounded to few bits. Orthogonal, so that a product of two operands that are transformed along
// the contracted extent is that of the operands. Host and device.

#include <cstdint>

#include "base/host_device.h"

namespace fp8train {

constexpr int kHadamardSize = 16;

/// Bit i: value i changes its sign first (TransformerEngine, pytorch/tensor/nvfp4_tensor.py
/// get_wgrad_sign_vector).
constexpr uint32_t kHadamardSigns = 0xD7E8U;

/// values * diag(signs) * H / 4, H being Sylvester's matrix, of `lines` vectors at once: value i of
/// vector l is values[i * stride + l]. Sums in fp32, in the order of the fast transform.
FP8TRAIN_HD void random_hadamard(float* values, int64_t stride, int64_t lines) {
  for (int i = 0; i < kHadamardSize; ++i) {
    const float factor = (kHadamardSigns >> i & 1U) != 0 ? -0.25F : 0.25F;
    for (int64_t line = 0; line < lines; ++line) {
      values[i * stride + line] *= factor;
    }
  }
  for (int half = 1; half < kHadamardSize; half *= 2) {
    for (int i = 0; i < kHadamardSize; ++i) {
      if ((i & half) != 0) {
        continue;
      }
      float* first = values + i * stride;
      float* second = values + (i + half) * stride;
      for (int64_t line = 0; line < lines; ++line) {
        const float sum = first[line] + second[line];
        second[line] = first[line] - second[line];
        first[line] = sum;
      }
    }
  }
}

}  // namespace fp8train
