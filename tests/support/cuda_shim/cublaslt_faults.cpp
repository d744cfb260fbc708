#include "cublaslt_faults.h"

#include <cstring>

namespace fp8train::shim {

CublasLtFaults& faults() {
  static CublasLtFaults all;
  return all;
}

const char* why_faulty(const ScaledSide& a, const ScaledSide& b) {
  const bool vectors = a.mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F ||
                       b.mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
  const int64_t multiple = faults().vector_multiple;
  if (vectors && (a.rows % multiple != 0 || b.rows % multiple != 0)) {
    return multiple == 4 ? "M and N must be multiples of 4 with 128-block scales"
                         : "M and N must be multiples of more than 4 with 1x128 scales";
  }
  if (a.mode == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F && b.rows <= faults().few_rows &&
      a.k >= faults().large_k) {
    return "row scales with few rows and a large K";
  }
  return nullptr;
}

Factors factors_of(uint64_t algorithm, int64_t k, bool scales_are_ignored) {
  Factors factors = {0.0F, 0.0F, scales_are_ignored, k, 1};
  if (faults().drops_tail && algorithm == kFastest && k > kTileK) {
    factors.k_read = k / kTileK * kTileK;
  }
  if (algorithm == kReducesInD) {
    factors.parts = kSplitK;
  }
  return factors;
}

}  // namespace fp8train::shim

using namespace fp8train::shim;  // NOLINT(google-build-using-namespace)

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, size_t bytes, size_t* written) {
  const uint64_t number = algorithm->data[3];
  const bool split = number == kFastest || number == kReducesInD;
  const int64_t scheme = number == kReducesInD ? CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE
                         : split               ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
                                               : CUBLASLT_REDUCTION_SCHEME_NONE;
  const auto answer =
      static_cast<uint32_t>(attribute == CUBLASLT_ALGO_CONFIG_ID ? static_cast<int64_t>(number)
                            : attribute == CUBLASLT_ALGO_CONFIG_SPLITK_NUM ? (split ? kSplitK : 1)
                                                                           : scheme);
  if (bytes != sizeof(answer)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  std::memcpy(value, &answer, bytes);
  *written = bytes;
  return CUBLAS_STATUS_SUCCESS;
}
