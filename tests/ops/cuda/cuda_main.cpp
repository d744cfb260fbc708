// Runs the tests where there is a cuda device; elsewhere says why not and leaves with the code that
// ctest counts as skipped. scripts/gpu_check.sh chooses test cases by tags: one for each topic,
// [exhaustive] for every code there is, [small] for those that are run under compute-sanitizer.

#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>

#include "device/cuda/cuda_device.h"

int main(int argc, char** argv) {
  const std::string obstacle = fp8train::why_cuda_is_unusable();
  if (!obstacle.empty()) {
    std::printf("skipped: %s\n", obstacle.c_str());
    return 77;
  }
  // Our own kernels are under test; tests of cuDNN's ask for them.
  setenv("FP8TRAIN_CUDA_ATTENTION", "own", 1);
  return Catch::Session().run(argc, argv);
}
