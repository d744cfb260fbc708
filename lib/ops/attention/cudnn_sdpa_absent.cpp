#include "ops/attention/cudnn_sdpa.h"

namespace fp8train::ops::cuda {

std::unique_ptr<SdpaLibrary> make_sdpa_library(const CudaContext& /*context*/,
                                               std::string& why_not) {
  why_not =
      "this build has no cuDNN attention: cudnn-frontend was not found when it was configured";
  return nullptr;
}

}  // namespace fp8train::ops::cuda
