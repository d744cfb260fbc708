#include "comm/nccl_library.h"

#include <dlfcn.h>

#include "base/error.h"

namespace fp8train {
namespace {

constexpr const char* kLibraries[] = {"libnccl.so.2", "/usr/local/cuda/lib64/libnccl.so.2"};

void* open_library() {
  for (const char* name : kLibraries) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
      return library;
    }
  }
  return nullptr;
}

void* library() {
  static void* const opened = open_library();  // stays open to the end of the program
  return opened;
}

}  // namespace

std::string why_nccl_is_unusable() {
  return library() != nullptr
             ? ""
             : "libnccl.so.2 is not found; install NCCL for CUDA 13 (package libnccl2, or the "
               "Python package nvidia-nccl-cu13) and put its folder into LD_LIBRARY_PATH";
}

void* nccl_function(const char* name) {
  if (library() == nullptr) {
    throw CommError(why_nccl_is_unusable());
  }
  void* function = dlsym(library(), name);
  if (function == nullptr) {
    throw CommError(std::string("libnccl.so.2 has no ") + name + "; install NCCL 2.20 or newer");
  }
  return function;
}

}  // namespace fp8train
