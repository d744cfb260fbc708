#pragma once
// A tensor in one of the stored formats, in host memory: the form of a checkpoint's state while it
// is converted to the formats of another plan. Synchronous; owns its memory.

#include <cstdint>
#include <vector>

#include "tensor/stored_tensor.h"

namespace fp8train {

struct HostStored {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  StoredTensor tensor;  ///< of the two above; rounds to nearest

  HostStored(const TensorFormat& format, int64_t count);
  HostStored(HostStored&&) = default;
  HostStored(const HostStored&) = delete;
  HostStored& operator=(const HostStored&) = delete;
};

/// All values, fp32.
std::vector<float> values_of(const HostStored& stored);
/// The values, rounded to nearest into the format.
HostStored stored_in(const TensorFormat& format, const std::vector<float>& values);

/// As AdamW does (ops/optimizer/optimizer.h): where a second moment has scales, it does not become
/// 0 where the first moment is not 0. `second` has scales.
void floor_second_moment(const std::vector<float>& first, HostStored& second);

}  // namespace fp8train
