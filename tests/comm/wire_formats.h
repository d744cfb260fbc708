#pragma once
// Formats of codes that cross a wire, for tests.

#include "tensor/tensor_format.h"

namespace fp8train::test {

/// E4M3 with a current scale; of 128 elements for per::group(128).
inline TensorFormat encoded(ScaleBlock block, ScaleType type) {
  return {.dtype = DType::e4m3, .block = block, .policy = ScalePolicy::current, .scale_type = type};
}

}  // namespace fp8train::test
