#include "ops/dispatch/cpu_operations.h"

namespace fp8train::ops::cpu {

std::optional<size_t> attention_backward_workspace(Stream /*stream*/,
                                                   const AttentionBackward& /*call*/) {
  return std::nullopt;
}

std::string attention_kernels(Stream /*stream*/) {
  return {};
}

}  // namespace fp8train::ops::cpu
