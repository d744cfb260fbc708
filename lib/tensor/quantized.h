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

/// The order of the scales of a matrix of granules. For row the two are the same.
enum class ScaleLayout : uint8_t {
  row_major,  ///< [granules down, granules across]
  cublaslt,  ///< as cuBLASLt's block scale modes read them. 1x128: column by column, each padded to
             ///< a multiple of 4; 128x128: row by row, each padded to a multiple of 4; 1x32: tiles
             ///< of 128 x 4. Padding is never written; cuBLASLt wants it to be zero.
};

/// One orientation of a matrix that has a scale for each granule: a row, 128 or 32 consecutive
/// elements of a row, or a square of 128 x 128.
struct GranuleView {
  View codes;              ///< [rows, columns]; empty where this orientation is not wanted
  View scale_inv;          ///< what codes are multiplied by: fp32, or e8m0 for ScaleType::e8m0; as
                           ///< many as ops::granule_grid says
  float* scale = nullptr;  ///< device memory, in the same order: what values are multiplied by; may
                           ///< be null but for Granularity::row
};

/// A matrix quantized by granules. A GEMM multiplies along rows of codes, so the transposed operand
/// is a quantization of its own whose granules lie along the columns of the matrix; only the codes
/// of 128 x 128 are the same in both.
struct GranuleQuantizedView {
  GranuleView rowwise;     ///< codes [rows, columns]
  GranuleView columnwise;  ///< codes [columns, rows]
  TensorFormat format;
  ScaleLayout layout = ScaleLayout::row_major;
};

}  // namespace fp8train
