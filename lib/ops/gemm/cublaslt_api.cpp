#include "ops/gemm/cublaslt_api.h"

#include <dlfcn.h>

#include <string>

#include "base/error.h"
#include "device/cuda/cuda_libraries.h"

namespace fp8train::ops::cuda {
namespace {

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) {
    throw DeviceError(std::string("libcublasLt.so.13 has no ") + name + "; install CUDA 13's");
  }
}

CublasLtApi load() {
  const OpenedLibrary& opened = cuda_library(CudaLibrary::cublaslt);
  if (opened.handle == nullptr) {
    throw DeviceError(opened.why_not);
  }
  void* library = opened.handle;
  CublasLtApi api = {};
  find(library, "cublasLtGetVersion", api.get_version);
  find(library, "cublasLtGetStatusString", api.get_status_string);
  find(library, "cublasLtCreate", api.create);
  find(library, "cublasLtDestroy", api.destroy);
  find(library, "cublasLtMatmulDescCreate", api.matmul_desc_create);
  find(library, "cublasLtMatmulDescDestroy", api.matmul_desc_destroy);
  find(library, "cublasLtMatmulDescSetAttribute", api.matmul_desc_set_attribute);
  find(library, "cublasLtMatrixLayoutCreate", api.matrix_layout_create);
  find(library, "cublasLtMatrixLayoutDestroy", api.matrix_layout_destroy);
  find(library, "cublasLtMatmulPreferenceCreate", api.matmul_preference_create);
  find(library, "cublasLtMatmulPreferenceDestroy", api.matmul_preference_destroy);
  find(library, "cublasLtMatmulPreferenceSetAttribute", api.matmul_preference_set_attribute);
  find(library, "cublasLtMatmulAlgoGetHeuristic", api.matmul_algo_get_heuristic);
  find(library, "cublasLtMatmulAlgoCheck", api.matmul_algo_check);
  find(library, "cublasLtMatmulAlgoConfigGetAttribute", api.matmul_algo_config_get_attribute);
  find(library, "cublasLtMatmul", api.matmul);
  return api;
}

}  // namespace

const CublasLtApi& cublaslt() {
  static const CublasLtApi api = load();
  return api;
}

}  // namespace fp8train::ops::cuda
