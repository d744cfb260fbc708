#include "device/gpu_kinds.h"

namespace fp8train {

const std::vector<GpuKind>& gpu_kinds() {
  // NVIDIA's data sheets. Memory: less what the driver and a context keep. Links: PCIe 4.0 x16 (5.0
  // of the RTX 5090), NVLink 4 of H100 and H200 SXM, NVLink 5 of B200. Networks: 400 Gbit/s for
  // each of the three last named, 100 for others.
  static const std::vector<GpuKind> kKinds = {
      {"l4", 89, 21.5, 121, 242, 300, 32, 12.5},
      {"rtx4090", 89, 23, 165, 330, 1008, 32, 12.5},
      {"l40s", 89, 43.5, 362, 733, 864, 32, 12.5},
      {"rtx6000ada", 89, 46.5, 364, 728, 960, 32, 12.5},
      {"h100", 90, 78.5, 989, 1979, 3350, 450, 50},
      {"h200", 90, 139, 989, 1979, 4800, 450, 50},
      {"b200", 100, 177, 2250, 4500, 7700, 900, 50},
      {"rtx5090", 120, 30.5, 209, 419, 1792, 64, 12.5},
  };
  return kKinds;
}

const GpuKind* find_gpu_kind(std::string_view name) {
  for (const GpuKind& kind : gpu_kinds()) {
    if (name == kind.name) {
      return &kind;
    }
  }
  return nullptr;
}

}  // namespace fp8train
