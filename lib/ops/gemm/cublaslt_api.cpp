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
  void* const library = opened.handle;
  CublasLtApi api = {};
#define FP8TRAIN_FIND(member, name) find(library, #name, api.member);
  FP8TRAIN_CUBLASLT_FUNCTIONS(FP8TRAIN_FIND)
#undef FP8TRAIN_FIND
  return api;
}

}  // namespace

const CublasLtApi& cublaslt() {
  static const CublasLtApi api = load();
  return api;
}

}  // namespace fp8train::ops::cuda
