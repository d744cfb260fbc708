#pragma once
// GPUs by name, for planning runs on machines that are not this one.

#include <string_view>
#include <vector>

namespace fp8train {

/// As its maker states it: rates per second, of dense products, in one direction of a link.
struct GpuKind {
  const char* name;
  int capability;           ///< for cuda_traits()
  double memory_gib;        ///< what a process can have of it, rounded down
  double tera_flops_16bit;  ///< 10^12; fp32 sums
  double tera_flops_8bit;
  double memory_rate;   ///< 10^9 bytes
  double node_rate;     ///< 10^9 bytes to other GPUs of the node
  double network_rate;  ///< 10^9 bytes to other nodes, for each GPU: of the usual adapter
};

/// Those with FP8 units, by compute capability and memory.
const std::vector<GpuKind>& gpu_kinds();

/// Null when there is none of this name.
const GpuKind* find_gpu_kind(std::string_view name);

}  // namespace fp8train
