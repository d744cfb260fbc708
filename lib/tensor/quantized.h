#pragma once
// A quantized tensor: codes, their scales, and the format that says how to read them. codes =
// cast(value * scale); the reciprocal of each scale is kept beside it because that is what a GEMM
// multiplies by.

#include "tensor/tensor_format.h"
#include "tensor/view.h"

namespace fp8train {

struct QuantizedView {
  View codes;              ///< shape of the value; may be empty where only the transpose is kept
  View codes_transposed;   ///< the same codes as [columns, rows]; empty unless the device's GEMM
                           ///< needs that orientation
  float* scale = nullptr;  ///< device memory; one per granule, granules in row-major order
  float* scale_inv = nullptr;  ///< device memory; 1 / scale
  TensorFormat format;

  bool empty() const { return codes.empty() && codes_transposed.empty(); }
};

}  // namespace fp8train
