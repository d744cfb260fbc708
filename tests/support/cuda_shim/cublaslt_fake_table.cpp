// The fake cuBLASLt as the library finds it.

#include "ops/gemm/cublaslt_api.h"

namespace fp8train::ops::cuda {

const CublasLtApi& cublaslt() {
#define FP8TRAIN_FAKE(member, name) .member = (name),
  static const CublasLtApi api = {FP8TRAIN_CUBLASLT_FUNCTIONS(FP8TRAIN_FAKE)};
#undef FP8TRAIN_FAKE
  return api;
}

}  // namespace fp8train::ops::cuda
