#include "device/gpu_kinds.h"

#include <sstream>
#include <string>

#include "base/text.h"

namespace fp8train {

const std::vector<GpuKind>& gpu_kinds() {
  // NVIDIA's data sheets. Memory: less what the driver and a context keep. Links: PCIe 4.0 x16 (5.0
  // of the RTX 5090), NVLink 4 of H100 and H200 SXM, NVLink 5 of B200. Networks: 400 Gbit/s for
  // each of the three last named, 100 for others. FP32: of the boost clock.
  static const std::vector<GpuKind> kKinds = {
      {"l4", 89, 21.5, 121, 242, 300, 32, 12.5, 30.3},
      {"rtx4090", 89, 23, 165, 330, 1008, 32, 12.5, 82.6},
      {"l40s", 89, 43.5, 362, 733, 864, 32, 12.5, 91.6},
      {"rtx6000ada", 89, 46.5, 364, 728, 960, 32, 12.5, 91.1},
      {"h100", 90, 78.5, 989, 1979, 3350, 450, 50, 67},
      {"h200", 90, 139, 989, 1979, 4800, 450, 50, 67},
      {"b200", 100, 177, 2250, 4500, 7700, 900, 50, 75},
      {"rtx5090", 120, 30.5, 209, 419, 1792, 64, 12.5, 104.8},
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

const GpuKind* gpu_kind_in(std::string_view description) {
  std::istringstream words{std::string(description)};
  std::string before;
  for (std::string word; words >> word; before = word) {
    word = lower(word);
    for (const std::string& name : {word, before + word}) {
      if (const GpuKind* kind = find_gpu_kind(name)) {
        return kind;
      }
    }
  }
  return nullptr;
}

AchievedShares achieved_shares(const GpuKind& gpu) {
  // Measured on an H200: GEMMs of 8192^3 in bf16 reach 0.77 to 0.80 of 989 TFLOP/s, and a copy 4.3
  // of 4.8 TB/s. Assumed: 1.3 PFLOP/s in FP8 with fast accumulation and 1.05 without on an H200;
  // cuDNN's attention at 0.6 and 0.5 PFLOP/s; kernels that keep four of five cycles of a scheduler
  // busy; 2 us between kernels of a CUDA graph. The same shares are assumed of other GPUs, but that
  // tensor cores from compute capability 10.0 on sum in fp32 at full speed.
  AchievedShares shares = {.bits16 = 0.78,
                           .fp8_fast = 0.66,
                           .fp8 = 0.53,
                           .f32 = 0.8,
                           .attention_forward = 0.6,
                           .attention_backward = 0.5,
                           .memory = 0.9,
                           .instructions = 0.8,
                           .launch_seconds = 2e-6};
  if (gpu.capability >= 100) {
    shares.fp8 = shares.fp8_fast;
  }
  return shares;
}

}  // namespace fp8train
