#pragma once
// Formats of codes that cross a wire, for tests.

#include "tensor/tensor_format.h"

namespace fp8train::test {

/// E4M3 with a current scale; of 128 elements for Granularity::group.
inline TensorFormat encoded(Granularity granularity, ScaleType type) {
  return {.dtype = DType::e4m3,
          .granularity = granularity,
          .policy = ScalePolicy::current,
          .scale_type = type,
          .group_size = granularity == Granularity::group ? 128 : 0};
}

}  // namespace fp8train::test
