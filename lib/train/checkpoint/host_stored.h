#pragma once
// A tensor in one of the stored formats, in host memory: the form of a checkpoint's state while it
// is converted to the formats of another plan. Synchronous; owns its memory.

#include <cstdint>
#include <vector>

#include "device/device.h"
#include "tensor/encoded.h"

namespace fp8train {

/// Owns codes and scales.
struct HostStored {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  Encoded tensor;  ///< a view of the two above; rounds to nearest

  HostStored(const TensorFormat& format, int64_t count);
  HostStored(HostStored&&) = default;
  HostStored(const HostStored&) = delete;
  HostStored& operator=(const HostStored&) = delete;
};

/// Returns all values in fp32.
std::vector<float> values_of(const HostStored& stored);
/// Returns the values rounded to nearest into the format.
HostStored stored_in(const TensorFormat& format, const std::vector<float>& values);

/// Copies a tensor to the device; decodes one of the device, without memory of it.
void upload(Device& device, const HostStored& from, const Encoded& to);
void decode_to_host(Device& device, const Encoded& tensor, float* to);

/// Raises encoded second moments that are 0 where the first moment is not 0, as AdamW does if
/// second moments have scales (ops/optimizer/optimizer.h). `second` has scales.
void floor_second_moment(const std::vector<float>& first, HostStored& second);

}  // namespace fp8train
