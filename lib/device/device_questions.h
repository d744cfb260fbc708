#pragma once
// Questions that code for every device may ask of one in addition to its traits.

#include "device/device.h"

namespace fp8train {

/// Whether nothing is computed: memory is planned, never read or written.
inline bool counts_only(const Device& device) {
  return device.kind() == DeviceKind::meta;
}

/// Whether its memory is the host's, which all ranks of a machine take theirs from.
inline bool is_host(const Device& device) {
  return device.kind() == DeviceKind::cpu;
}

}  // namespace fp8train
