#pragma once
// Questions about a device, in addition to its traits, that code for every device may ask.

#include "device/device.h"

namespace fp8train {

/// Whether the device computes nothing: memory is planned, and never read or written.
inline bool counts_only(const Device& device) {
  return device.kind() == DeviceKind::meta;
}

/// Whether its memory is the host's, which all ranks of a machine share.
inline bool is_host(const Device& device) {
  return device.kind() == DeviceKind::cpu;
}

}  // namespace fp8train
