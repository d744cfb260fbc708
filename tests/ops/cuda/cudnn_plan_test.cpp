// Our attention graphs put before the real cuDNN, without a GPU: it is given the properties of
// one, validates the graph, chooses an engine, compiles its kernel and says how much memory it
// needs. The driver is the stand-in of tests/support/cudnn_driver; nothing runs. Skipped where
// cuDNN or NVRTC is not installed.

#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>

#include <dlfcn.h>

#include "ops/attention/cudnn_sdpa.h"

namespace fp8train::ops::cuda {
namespace {

constexpr double kMebi = 1 << 20;

struct Gpu {
  const char* name;
  int capability, multiprocessors, shared_bytes, threads, blocks;

  /// As cuDNN writes a device's properties.
  std::string properties() const {
    const auto field = [](const char* key, int64_t value) {
      return std::string("\"") + key + "\":" + std::to_string(value) + ",";
    };
    return "{" + field("deviceVer", 10 * capability) + field("driverVer", 13000) +
           field("multiProcessorCount", multiprocessors) + field("maxSharedMemoryPerBlock", 49152) +
           field("maxSharedMemoryPerBlockOptin", shared_bytes) +
           field("reservedSharedMemoryPerBlock", 1024) + field("maxThreadsPerSM", threads) +
           field("maxCtasPerSM", blocks) + field("maxThreadsPerBlock", 1024) +
           field("regsPerBlock", 65536) + field("maxRegistersPerSM", 65536) +
           field("warpSize", 32) + field("supportCoopLaunch", 1) + field("l2CacheSize", 50 << 20) +
           field("smClockRateKHz", 1980000) + field("memClockRateKHz", 3201000) +
           field("totalGlobalMem", 80LL << 30) + field("cudaDeviceId", 0) +
           field("pciDeviceId", 0) + field("isTccDriver", 0) +
           "\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64]," +
           "\"deviceName\":\"" + name + "\"}";
  }
};

constexpr Gpu kGpus[] = {{"L40S", 89, 142, 101376, 1536, 24},
                         {"H200", 90, 132, 232448, 2048, 32},
                         {"B200", 100, 148, 232448, 2048, 32}};

/// q, k and v as slices of fused rows, as layers pose it.
SdpaProblem problem_of(int64_t batch, int64_t length, int64_t heads, int64_t kv_heads, int64_t dim,
                       bool backward, DType dtype = DType::bf16) {
  const int64_t fused = (heads + 2 * kv_heads) * dim;
  const SdpaLayout wide = {fused, fused * length};
  const SdpaLayout narrow = {heads * dim, heads * dim * length};
  SdpaProblem problem;
  problem.shape = {
      batch, length, length, heads, kv_heads, dim, 1.0F / std::sqrt(static_cast<float>(dim))};
  problem.dtype = dtype;
  problem.backward = backward;
  problem.keeps_log_sum_exp = !backward;
  problem.q = problem.k = problem.v = wide;
  problem.out = narrow;
  if (backward) {
    problem.dq = problem.dk = problem.dv = wide;
    problem.dout = narrow;
  }
  return problem;
}

std::unique_ptr<SdpaLibrary> planner_for(const Gpu& gpu) {
  std::string why_not;
  std::unique_ptr<SdpaLibrary> planner =
      make_sdpa_planner(gpu.capability, gpu.properties(), why_not);
  INFO(why_not);
  REQUIRE(planner != nullptr);
  return planner;
}

TEST_CASE("cuDNN has plans for our attention graphs on each architecture") {
  for (const Gpu& gpu : kGpus) {
    const std::unique_ptr<SdpaLibrary> planner = planner_for(gpu);
    const SdpaProblem problems[] = {
        problem_of(2, 1000, 4, 2, 128, false), problem_of(2, 1000, 4, 2, 128, true),
        problem_of(3, 33, 2, 2, 80, false),    problem_of(3, 33, 2, 2, 80, true),
        problem_of(1, 24, 2, 1, 16, true),     problem_of(1, 256, 8, 8, 64, true, DType::f16)};
    for (const SdpaProblem& problem : problems) {
      INFO(gpu.name << ", length " << problem.shape.query_length << ", D " << problem.shape.head_dim
                    << (problem.backward ? ", backward" : ", forward"));
      std::string why_not;
      const std::unique_ptr<SdpaPlan> plan = planner->plan(problem, why_not);
      CHECK(why_not.empty());
      CHECK(plan != nullptr);
    }
    SdpaProblem bare = problem_of(1, 100, 2, 1, 64, false);
    bare.keeps_log_sum_exp = false;
    std::string why_not;
    CHECK(planner->plan(bare, why_not) != nullptr);
  }
}

/// In FP8: with delayed scaling all tensors are codes, with current scaling results are in bf16.
SdpaProblem in_codes(SdpaProblem problem, bool delayed) {
  problem.dtype = DType::e4m3;
  problem.codes = delayed ? SdpaCodes{} : SdpaCodes{.out = DType::bf16, .gradients = DType::bf16};
  return problem;
}

TEST_CASE("cuDNN has plans for our attention graphs in FP8 from Hopper on") {
  for (const Gpu& gpu : kGpus) {
    const std::unique_ptr<SdpaLibrary> planner = planner_for(gpu);
    const auto why_not = [&](const SdpaProblem& problem) {
      std::string why;
      const std::unique_ptr<SdpaPlan> plan = planner->plan(problem, why);
      return plan != nullptr ? std::string() : "refused: " + why;
    };
    INFO(gpu.name);
    for (const bool delayed : {true, false}) {
      for (const bool backward : {false, true}) {
        for (const int64_t dim : {64, 128}) {
          INFO((delayed ? "delayed" : "current")
               << (backward ? ", backward" : ", forward") << ", D " << dim);
          const std::string why =
              why_not(in_codes(problem_of(2, 512, 4, 2, dim, backward), delayed));
          INFO(why);
          const bool has = gpu.capability >= 100 ||
                           (gpu.capability == 90 && delayed && (!backward || dim == 128));
          CHECK(why.empty() == has);
        }
      }
    }
  }
}

// The cost of determinism that docs/develop/cuda.md names: a step of a Llama-3-8B layer.
TEST_CASE("the backward passes keep within the memory that we count on") {
  for (const Gpu& gpu : kGpus) {
    const std::unique_ptr<SdpaLibrary> planner = planner_for(gpu);
    std::string why_not;
    const auto bytes = [&](bool backward, bool deterministic) {
      SdpaProblem problem = problem_of(1, 8192, 32, 8, 128, backward);
      problem.shape.deterministic = deterministic;
      const std::unique_ptr<SdpaPlan> plan = planner->plan(problem, why_not);
      INFO(gpu.name << " " << why_not);
      REQUIRE(plan != nullptr);
      return static_cast<double>(plan->workspace_bytes());
    };
    const double forward = bytes(false, false) / kMebi;
    const double backward = bytes(true, true) / kMebi;
    const double varying = bytes(true, false) / kMebi;
    std::printf(
        "cuDNN %s, %s, B 1, T 8192, H 32 / 8, D 128: forward %.1f MiB, backward %.1f MiB, "
        "deterministic %.1f MiB\n",
        planner->version().c_str(), gpu.name, forward, varying, backward);
    CHECK(forward < 1);
    // Gradients of scores in two bytes, and sums in fp32 for dk and dv of each query head.
    const double scores = gpu.capability < 100 ? 32.0 * 8192 * 8192 * 2 / kMebi : 0;
    const double sums = 32.0 * 8192 * 128 * 2 * 4 / kMebi;
    CHECK(backward <= scores + 1.1 * sums);
    CHECK(varying <= 1.1 * 1.5 * sums);  // some sum dq in fp32 too
    if (gpu.capability < 100) {
      CHECK(backward > varying + scores / 2);
    }
  }
}

TEST_CASE("cuDNN refuses what our side does not ask it for") {
  const std::unique_ptr<SdpaLibrary> planner = planner_for(kGpus[1]);
  for (const SdpaProblem& problem :
       {problem_of(1, 64, 2, 1, 36, false), problem_of(1, 64, 3, 2, 64, false),
        problem_of(1, 1, 2, 1, 64, true)}) {
    std::string why_not;
    CHECK(planner->plan(problem, why_not) == nullptr);
    CHECK(!why_not.empty());
  }
}

}  // namespace
}  // namespace fp8train::ops::cuda

int main(int argc, char** argv) {
  for (const char* library : {"libcudnn.so.9", "libcudart.so.13", "libnvrtc.so.13"}) {
    if (dlopen(library, RTLD_NOW | RTLD_LOCAL) == nullptr) {
      std::printf("skipped: %s is not found (LD_LIBRARY_PATH)\n", library);
      return 77;
    }
  }
  return Catch::Session().run(argc, argv);
}
