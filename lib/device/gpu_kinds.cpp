#include "device/gpu_kinds.h"

namespace fp8train {

const std::vector<GpuKind>& gpu_kinds() {
  // Data sheets' figures less what the driver and a context keep.
  static const std::vector<GpuKind> kKinds = {
      {"l4", 89, 21.5},   {"rtx4090", 89, 23}, {"l40s", 89, 43.5}, {"rtx6000ada", 89, 46.5},
      {"h100", 90, 78.5}, {"h200", 90, 139},   {"b200", 100, 177}, {"rtx5090", 120, 30.5},
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
