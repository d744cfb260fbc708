#pragma once
// The functions of cuBLASLt that the library calls, found when they are first needed: the program
// starts on machines that have no cuBLASLt. In the SHIM form fakes stand in that enforce the
// library's rules (tests/support/cuda_shim/cublaslt_fake.cpp).

#include <cublasLt.h>

namespace fp8train::ops::cuda {

/// The functions of cuBLASLt that the program calls, from the opened library.
struct CublasLtApi {
  decltype(&cublasLtGetVersion) get_version;
  decltype(&cublasLtGetStatusString) get_status_string;
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtMatmulDescCreate) matmul_desc_create;
  decltype(&cublasLtMatmulDescDestroy) matmul_desc_destroy;
  decltype(&cublasLtMatmulDescSetAttribute) matmul_desc_set_attribute;
  decltype(&cublasLtMatrixLayoutCreate) matrix_layout_create;
  decltype(&cublasLtMatrixLayoutDestroy) matrix_layout_destroy;
  decltype(&cublasLtMatmulPreferenceCreate) matmul_preference_create;
  decltype(&cublasLtMatmulPreferenceDestroy) matmul_preference_destroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) matmul_preference_set_attribute;
  decltype(&cublasLtMatmulAlgoGetHeuristic) matmul_algo_get_heuristic;
  decltype(&cublasLtMatmulAlgoCheck) matmul_algo_check;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) matmul_algo_config_get_attribute;
  decltype(&cublasLtMatmul) matmul;
};

/// Throws DeviceError, saying what to install, when the library is not found.
const CublasLtApi& cublaslt();

}  // namespace fp8train::ops::cuda
