#pragma once
// The functions of cuBLASLt that the library calls, found when they are first needed: the program
// starts on machines that have no cuBLASLt. In the SHIM form fakes stand in that enforce the
// library's rules (tests/support/cuda_shim/cublaslt_fake.cpp).

#include <cublasLt.h>

namespace fp8train::ops::cuda {

/// function(member of CublasLtApi, function of the library) for each.
// clang-format off
#define FP8TRAIN_CUBLASLT_FUNCTIONS(function)                                      \
  function(get_version, cublasLtGetVersion)                                        \
  function(get_status_string, cublasLtGetStatusString)                             \
  function(create, cublasLtCreate)                                                 \
  function(destroy, cublasLtDestroy)                                               \
  function(matmul_desc_create, cublasLtMatmulDescCreate)                           \
  function(matmul_desc_destroy, cublasLtMatmulDescDestroy)                         \
  function(matmul_desc_set_attribute, cublasLtMatmulDescSetAttribute)              \
  function(matrix_layout_create, cublasLtMatrixLayoutCreate)                       \
  function(matrix_layout_destroy, cublasLtMatrixLayoutDestroy)                     \
  function(matmul_preference_create, cublasLtMatmulPreferenceCreate)               \
  function(matmul_preference_destroy, cublasLtMatmulPreferenceDestroy)             \
  function(matmul_preference_set_attribute, cublasLtMatmulPreferenceSetAttribute)  \
  function(matmul_algo_get_heuristic, cublasLtMatmulAlgoGetHeuristic)              \
  function(matmul_algo_check, cublasLtMatmulAlgoCheck)                             \
  function(matmul_algo_config_get_attribute, cublasLtMatmulAlgoConfigGetAttribute) \
  function(matmul, cublasLtMatmul)
// clang-format on

/// The functions of the opened library.
struct CublasLtApi {
#define FP8TRAIN_CUBLASLT_MEMBER(member, name) decltype(&(name)) member;
  FP8TRAIN_CUBLASLT_FUNCTIONS(FP8TRAIN_CUBLASLT_MEMBER)
#undef FP8TRAIN_CUBLASLT_MEMBER
};

/// Throws DeviceError, saying what to install, when the library is not found.
const CublasLtApi& cublaslt();

}  // namespace fp8train::ops::cuda
