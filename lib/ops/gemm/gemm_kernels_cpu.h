#pragma once
// The work of a cpu GEMM before and after oneDNN's product, at one CPU level: making operands
// row-major in the type that is multiplied, and turning fp32 products into the result. Bits do not
// depend on the level or the number of threads.

#include <cstdint>

#include "numeric/dtype.h"

namespace fp8train::ops::cpu {

/// A stored operand [rows, columns], or some columns of one, to be written as fp32 or bf16,
/// transposed: `to` is [columns, rows].
struct TransposedOperand {
  const void* from;
  DType from_type;
  int64_t rows, columns;
  int64_t stride;  ///< of rows of `from`
  void* to;
  DType to_type;
};

/// c = scale * product (+ c) (+ bias), rounded once to c's type; the steps before in fp32.
struct ProductEpilogue {
  const float* product;
  int64_t product_stride;
  int64_t rows, columns;
  float scale;
  bool add;           ///< c is fp32 and keeps what it holds
  const float* bias;  ///< null: none
  void* c;
  DType c_type;
  int64_t c_stride;
};

/// sum = product * (row_scales[r] * column_scales[c]) (+ sum): the part of a product that has those
/// scales. Rows of `columns` elements, packed.
struct ScaledPartial {
  const float* product;
  int64_t rows, columns;
  const float* row_scales;
  const float* column_scales;
  bool add;
  float* sum;  ///< may be `product`
};

/// product = a * b of FP8 numbers in fp32, with Hopper's short accumulator
/// (ops/gemm/short_accumulator.h). Row-major and packed: a [rows, depth], b [depth, columns].
struct ShortProduct {
  const float* a;
  const float* b;
  int64_t rows, columns, depth;
  float* product;
};

/// The functions of one level.
struct GemmKernels {
  void (*transpose_operand)(const TransposedOperand&);
  /// Runs on the calling thread.
  void (*finish)(const ProductEpilogue&);
  /// Runs on the calling thread.
  void (*scale_partial)(const ScaledPartial&);
  void (*short_product)(const ShortProduct&);
};

}  // namespace fp8train::ops::cpu
