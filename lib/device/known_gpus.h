#pragma once
// GPUs that a run can be planned for without having one.

#include <cstdint>
#include <string>
#include <vector>

#include "device/device.h"

namespace fp8train {

/// As its maker states it (dense, without sparsity). Rates per second.
struct KnownGpu {
  std::string name;  ///< "h100"
  std::string description;
  int capability = 0;        ///< 90 for 9.0
  int64_t memory_bytes = 0;  ///< that a program can have
  double flops_16bit = 0, flops_8bit = 0;
  double memory_rate = 0;   ///< bytes
  double node_rate = 0;     ///< bytes to other GPUs of the node, in one direction
  double network_rate = 0;  ///< bytes to other nodes, per GPU: of the usual network adapter
};

const std::vector<KnownGpu>& known_gpus();

/// Throws ConfigError listing the names.
const KnownGpu& known_gpu(const std::string& name);

/// What layers must know of it.
DeviceTraits traits_of(const KnownGpu& gpu);

}  // namespace fp8train
