#include "device/gpu_kinds.h"

#include <algorithm>
#include <sstream>
#include <string>

#include "base/text.h"

namespace fp8train {

const std::vector<GpuKind>& gpu_kinds() {
  // NVIDIA's data sheets. Memory: less what the driver and a context keep. FP32: of the boost
  // clock. Links: PCIe 4.0 x16, 5.0 of rtx5090 and rtxpro6000; NVLink 3 of a100, 4 of h100, gh200
  // and h200, 5 of b200, gb200 and b300. Networks: 400 Gbit/s for each h100, h200, b200 and gb200,
  // 800 for a b300, 200 for an a100 and a gh200, 100 for others. a100: SXM, 80 GB; it has no FP8
  // units, and its bf16 rate is given. gh200: 96 GB HBM3, in nodes of four as in Alps, Isambard-AI
  // and JUPITER. gb200: one of NVL72, which has 720 PFLOP/s in FP8 and 360 in bf16 (both
  // sparse), 5.76 in FP32, 13.4 TB, 576 TB/s. b300: one of HGX B300, which has 72 PFLOP/s in FP8
  // and 36 in bf16 (both sparse), 0.6 in FP32; 270 GB at 7.7 TB/s. Hosts: PCIe x16, 4.0 of a100 and
  // Ada, 6.0 of b300, 5.0 of others; NVLink-C2C of gh200 and gb200, of which two share one.
  // rtxpro6000: the Workstation Edition; its rates sum in fp32 (RTX Blackwell PRO architecture
  // paper).
  static const std::vector<GpuKind> kKinds = {
      {"a100", 80, 78.5, 312, 312, 2039, 300, 25, 32, 19.5},
      {"l4", 89, 21.5, 121, 242, 300, 32, 12.5, 32, 30.3},
      {"rtx4090", 89, 23, 165, 330, 1008, 32, 12.5, 32, 82.6},
      {"l40s", 89, 43.5, 362, 733, 864, 32, 12.5, 32, 91.6},
      {"rtx6000ada", 89, 46.5, 364, 728, 960, 32, 12.5, 32, 91.1},
      {"h100", 90, 78.5, 989, 1979, 3350, 450, 50, 64, 67},
      {"gh200", 90, 94, 989, 1979, 4000, 450, 25, 450, 67},
      {"h200", 90, 139, 989, 1979, 4800, 450, 50, 64, 67},
      {"b200", 100, 177, 2250, 4500, 7700, 900, 50, 64, 75},
      {"gb200", 100, 183, 2500, 5000, 8000, 900, 50, 225, 80},
      {"b300", 103, 266, 2250, 4500, 7700, 900, 100, 128, 75},
      {"rtx5090", 120, 30.5, 209, 419, 1792, 64, 12.5, 64, 104.8},
      {"rtxpro6000", 120, 94, 503.8, 1007.6, 1792, 64, 12.5, 64, 126},
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
  std::string text = lower(std::string(description));
  std::replace(text.begin(), text.end(), '-', ' ');  // "A100-SXM4-80GB"
  std::istringstream words(text);
  std::string before;
  std::string two_before;
  for (std::string word; words >> word; two_before = before + word, before = word) {
    for (const std::string& name : {word, before + word, two_before + word}) {
      if (const GpuKind* kind = find_gpu_kind(name)) {
        return kind;
      }
    }
  }
  return nullptr;
}

AchievedShares achieved_shares(const GpuKind& gpu) {
  // One table for `estimate` and `bench step`; docs/reference/benchmarks.md compares it with
  // published runs. It assumes the same of all GPUs, except that tensor cores from compute
  // capability 10.0 on sum in fp32 at full speed.
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
      .f32 = 0.8,  // assumed
      // FlashAttention-3 (arXiv 2407.08608), figures 5 and 6: cuDNN on an H100, head dimension 128,
      // long sequences.
      .attention_forward = 0.6,
      .attention_backward = 0.5,
      // NVIDIA/cudnn-frontend (3929da2), benchmark/sdpa_benchmark_training: cuDNN 9.19 on an H200,
      // causal, head dimension 128, length 8192: 964 and 430 TFLOP/s.
      .attention_forward_fp8 = 0.48,
      .attention_backward_fp8 = 0.22,
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
