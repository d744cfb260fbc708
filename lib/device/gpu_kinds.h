#pragma once
// GPUs by name, for planning runs on machines that are not this one.

#include <string_view>
#include <vector>

namespace fp8train {

struct GpuKind {
  const char* name;
  int capability;     ///< for cuda_traits()
  double memory_gib;  ///< what a process can have of it, rounded down
};

/// Those with FP8 units, by compute capability and memory.
const std::vector<GpuKind>& gpu_kinds();

/// Null when there is none of this name.
const GpuKind* find_gpu_kind(std::string_view name);

}  // namespace fp8train
