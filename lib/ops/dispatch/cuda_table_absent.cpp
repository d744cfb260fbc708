#include "base/error.h"
#include "ops/dispatch/cuda_table.h"

namespace fp8train::ops::cuda {

const OpTable& table() {
  throw DeviceError("no CUDA operations in this build; use `device: cpu`");
}

DeviceTraits probed_traits(Device& /*device*/) {
  throw DeviceError("no CUDA operations in this build; use `device: cpu`");
}

void tune_gemms(Device& /*device*/, const std::string& /*folder*/) {
  throw DeviceError("no CUDA operations in this build; use `device: cpu`");
}

std::string attention_kernels(Stream /*stream*/) {
  throw DeviceError("no CUDA operations in this build; use `device: cpu`");
}

std::optional<size_t> attention_backward_workspace(Stream /*stream*/,
                                                   const AttentionShape& /*shape*/, HeadsView /*q*/,
                                                   HeadsView /*k*/, HeadsView /*v*/,
                                                   HeadsView /*out*/, HeadsView /*dout*/,
                                                   HeadsView /*dq*/, HeadsView /*dk*/,
                                                   HeadsView /*dv*/) {
  throw DeviceError("no CUDA operations in this build; use `device: cpu`");
}

}  // namespace fp8train::ops::cuda
