#pragma once
// A quantized tensor: codes, their scales, and the format that says how to read them. codes =
// cast(value * scale); the reciprocal of each scale is stored next to it because that is what a
// GEMM multiplies by.

#include "tensor/tensor_format.h"
#include "tensor/view.h"

namespace fp8train {

struct QuantizedView {
  View codes;              ///< shape of the value; may be empty where only the transpose is stored
  View columnwise_codes;   ///< the same codes as [columns, rows]; empty unless the device's GEMM
                           ///< needs that orientation
  float* scale = nullptr;  ///< device memory; one per block, blocks in row-major order
  float* scale_inv = nullptr;  ///< device memory; 1 / scale
  TensorFormat format;

  bool empty() const { return codes.empty() && columnwise_codes.empty(); }
};

/// The order of the scales of a matrix of blocks. For row scales the two are the same.
enum class ScaleLayout : uint8_t {
  row_major,  ///< [blocks down, blocks across]
  cublaslt,  ///< as cuBLASLt's block scale modes read them. 1x128: column by column, each padded to
             ///< a multiple of 4; 128x128: row by row, each padded to a multiple of 4; 1x32: tiles
             ///< of 128 x 4. Padding is never written; cuBLASLt wants it to be zero.
};

/// One orientation of a matrix that has a scale for each block: a row, 128 or 32 consecutive
/// elements of a row, or a square of 128 x 128.
struct BlockwiseView {
  View codes;              ///< [rows, columns]; empty where this orientation is not wanted
  View scale_inv;          ///< what codes are multiplied by: fp32, or e8m0 for ScaleType::e8m0; as
                           ///< many as ops::scale_grid says
  float* scale = nullptr;  ///< device memory, in the same order: what values are multiplied by; may
                           ///< be null but for per::row
};

/// A matrix quantized by blocks. A GEMM multiplies along rows of codes, so the transposed operand
/// is a quantization of its own whose blocks lie along the columns of the matrix; only the codes
/// of 128 x 128 are the same in both.
struct BlockwiseQuantizedView {
  BlockwiseView rowwise;     ///< codes [rows, columns]
  BlockwiseView columnwise;  ///< codes [columns, rows]
  TensorFormat format;
  ScaleLayout layout = ScaleLayout::row_major;
};

}  // namespace fp8train
