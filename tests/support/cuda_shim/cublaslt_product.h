#pragma once
// What the fake cuBLASLt computes: one product, in fp32, with its scales, bias and one rounding.

#include <cublasLt.h>

#include <cstdint>

struct cublasLtMatmulDescOpaque_t {
  cublasOperation_t a_operation = CUBLAS_OP_N;
  cublasOperation_t b_operation = CUBLAS_OP_N;
  const void* a_scale = nullptr;
  const void* b_scale = nullptr;
  int32_t a_mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  int32_t b_mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  int8_t fast_accumulate = 0;
  int32_t pointer_mode = CUBLASLT_POINTER_MODE_HOST;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  int32_t bias_type = -1;  // that of D
};
struct cublasLtMatrixLayoutOpaque_t {
  cudaDataType_t type;
  int64_t rows, columns, stride;
};

namespace fp8train::shim {

template <typename Pointer>
struct Matrix {
  Pointer data;
  cublasLtMatrixLayoutOpaque_t layout;
};

/// The factors of a product: d = alpha a b + beta c (+ bias). Scales may be left out.
struct Factors {
  float alpha, beta;
  bool scales_are_ignored;
  /// Of split-K: the elements of K that are read, and the parts whose sums are rounded to the type
  /// of D before they are added.
  int64_t k_read, parts;
};

void multiply(const cublasLtMatmulDescOpaque_t& product, const Factors& factors,
              const Matrix<const void*>& a, const Matrix<const void*>& b, const void* c,
              const Matrix<void*>& d);

}  // namespace fp8train::shim
