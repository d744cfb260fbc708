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
  // One table for `estimate` and `bench step`; docs/reference/benchmarks.md compares it with
  // published runs. It assumes the same of all GPUs, but that tensor cores from compute capability
  // 10.0 on sum in fp32 at full speed.
  AchievedShares shares = {
      // A step runs into the limit of power. 8192^3 alone reaches 0.77 to 0.80 on a cool H200; the
      // GEMMs of a layer in a row 0.61 on an H200 NVL (NVIDIA/TransformerEngine,
      // docs/examples/gemm_profiling); a whole step of a 7B 0.60 on an H100 (IST-DASLab/llmq,
      // benchmarks/H100x1.md). Chosen between them.
      .bits16 = 0.68,
      // Not measured here. On the two pages above FP8 GEMMs alone, with fast sums, are 1.9 times as
      // fast as those in bf16 (0.65 by that), and a whole step of a 7B with exact sums reaches 824
      // TFLOP/s with all that is not FP8. Chosen below and above them.
      .fp8_fast = 0.62,
      .fp8 = 0.55,
      .f32 = 0.8,
      // FlashAttention-3 (arXiv 2407.08608), figures 5 and 6: cuDNN on an H100, head dimension 128,
      // long sequences.
      .attention_forward = 0.6,
      .attention_backward = 0.5,
      .memory = 0.9,           // a copy on an H200: 4.3 of 4.8 TB/s
      .instructions = 0.8,     // assumed: four of five cycles of a scheduler
      .wire = 0.7,             // assumed
      .launch_seconds = 2e-6,  // assumed: between kernels of a CUDA graph
  };
  if (gpu.capability >= 100) {
    shares.fp8 = shares.fp8_fast;
  }
  return shares;
}

}  // namespace fp8train
