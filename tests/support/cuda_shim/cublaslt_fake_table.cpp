// The fake cuBLASLt as the library finds it.

#include "ops/gemm/cublaslt_api.h"

namespace fp8train::ops::cuda {

const CublasLtApi& cublaslt() {
  static const CublasLtApi api = {
      .get_version = cublasLtGetVersion,
      .get_status_string = cublasLtGetStatusString,
      .create = cublasLtCreate,
      .destroy = cublasLtDestroy,
      .matmul_desc_create = cublasLtMatmulDescCreate,
      .matmul_desc_destroy = cublasLtMatmulDescDestroy,
      .matmul_desc_set_attribute = cublasLtMatmulDescSetAttribute,
      .matrix_layout_create = cublasLtMatrixLayoutCreate,
      .matrix_layout_destroy = cublasLtMatrixLayoutDestroy,
      .matmul_preference_create = cublasLtMatmulPreferenceCreate,
      .matmul_preference_destroy = cublasLtMatmulPreferenceDestroy,
      .matmul_preference_set_attribute = cublasLtMatmulPreferenceSetAttribute,
      .matmul_algo_get_heuristic = cublasLtMatmulAlgoGetHeuristic,
      .matmul_algo_check = cublasLtMatmulAlgoCheck,
      .matmul_algo_config_get_attribute = cublasLtMatmulAlgoConfigGetAttribute,
      .matmul = cublasLtMatmul};
  return api;
}

}  // namespace fp8train::ops::cuda
