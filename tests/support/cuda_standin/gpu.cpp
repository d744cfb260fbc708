#include "gpu.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace fp8train::standin {
namespace {

constexpr size_t kKibi = size_t{1} << 10;
constexpr size_t kMebi = size_t{1} << 20;
constexpr size_t kGibi = size_t{1} << 30;

// NVIDIA's data sheets; shared memory: CUDA C++ Programming Guide, "Compute Capabilities".
constexpr Gpu kGpus[] = {
    {"rtx4090", "NVIDIA GeForce RTX 4090", 89, 128, 23 * kGibi, 72 * kMebi, 99 * kKibi},
    {"h100", "NVIDIA H100 80GB HBM3", 90, 132, 79 * kGibi, 50 * kMebi, 227 * kKibi},
    {"h200", "NVIDIA H200", 90, 132, 139 * kGibi, 50 * kMebi, 227 * kKibi},
    {"b200", "NVIDIA B200", 100, 148, 177 * kGibi, 126 * kMebi, 227 * kKibi}};

const Gpu& named(const char* key) {
  for (const Gpu& gpu : kGpus) {
    if (std::strcmp(gpu.key, key) == 0) {
      return gpu;
    }
  }
  std::fprintf(
      stderr, "FP8TRAIN_STANDIN_GPU: unknown GPU '%s' (expected rtx4090, h100, h200, b200)\n", key);
  std::exit(2);
}

}  // namespace

const Gpu& gpu() {
  static const Gpu described = [] {
    const char* const key = std::getenv("FP8TRAIN_STANDIN_GPU");
    Gpu gpu = named(key == nullptr ? "h200" : key);
    if (const char* const mebibytes = std::getenv("FP8TRAIN_STANDIN_MEMORY")) {
      gpu.memory = std::strtoull(mebibytes, nullptr, 10) * kMebi;
    }
    return gpu;
  }();
  return described;
}

int gpu_count() {
  const char* const count = std::getenv("FP8TRAIN_STANDIN_GPUS");
  return count == nullptr ? 1 : std::atoi(count);
}

}  // namespace fp8train::standin
