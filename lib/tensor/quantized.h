#pragma once
// A quantized tensor: codes, the scales of their blocks, and the format that says how to read them.
// codes = cast(value * scale); the reciprocal of each scale is stored next to it because that is
// what a GEMM multiplies by. Views of memory that the caller owns.

#include "tensor/tensor_format.h"
#include "tensor/view.h"

namespace fp8train {

/// The order of the scales of a matrix of blocks. Both orders are the same for row scales.
enum class ScaleLayout : uint8_t {
  row_major,  ///< [blocks down, blocks across]
  cublaslt,  ///< as cuBLASLt's block scale modes read them. 1x128: column by column, each padded to
             ///< a multiple of 4; 128x128: row by row, each padded to a multiple of 4; 1x32: tiles
             ///< of 128 x 4, and 32x32, 1x16 and 16x16 too. Padding is never written; cuBLASLt
             ///< wants it to be zero.
};

/// One orientation of a matrix: blocks lie along the rows of `codes`.
struct Quantized {
  View codes;                      ///< [rows, columns]; empty where this orientation is not wanted
  View scale_inv;                  ///< of blocks: what codes are multiplied by, of the dtype of the
                                   ///< format's ScaleType; as many as ops::scale_grid says
  float* scale = nullptr;          ///< of blocks: device memory, in the same order: what values are
                                   ///< multiplied by; may be null but for per::row
  float* row_scale_inv = nullptr;  ///< row_scaled: device memory [rows], above the scales of blocks
};

/// A GEMM multiplies along rows of codes, so the transposed operand has blocks that lie along the
/// columns of the matrix: a quantization of its own. Only per::tensor and squares have the same
/// codes in both orientations.
struct QuantizedTensor {
  Quantized rowwise;                  ///< codes [rows, columns]
  Quantized columnwise;               ///< codes [columns, rows]
  float* tensor_scale = nullptr;      ///< per::tensor: device memory; of both orientations
  float* tensor_scale_inv = nullptr;  ///< per::tensor: device memory; 1 / tensor_scale
                                      ///< scales in e4m3: both, above those of blocks
  TensorFormat format;
  ScaleLayout layout = ScaleLayout::row_major;

  bool empty() const { return rowwise.codes.empty() && columnwise.codes.empty(); }
};

}  // namespace fp8train
