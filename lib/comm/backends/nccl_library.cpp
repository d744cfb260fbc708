#include "comm/backends/nccl_library.h"

#include <dlfcn.h>

#include "base/error.h"
#include "device/cuda/cuda_libraries.h"

namespace fp8train {

std::string why_nccl_is_unusable() {
  return cuda_library(CudaLibrary::nccl).why_not;
}

void* nccl_function(const char* name) {
  const OpenedLibrary& library = cuda_library(CudaLibrary::nccl);
  if (library.handle == nullptr) {
    throw CommError(library.why_not);
  }
  void* function = dlsym(library.handle, name);
  if (function == nullptr) {
    throw CommError(library.file + " has no " + name + "; install NCCL 2.20 or newer");
  }
  return function;
}

}  // namespace fp8train
