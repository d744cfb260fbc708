#include "device/cuda/compiled_code.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "device/device.h"
#include "support/environment.h"

#if defined(FP8TRAIN_CUDA_SHIM)
#include "cuda_runtime_api.h"
#endif

namespace fp8train {
namespace {

std::vector<int> served(const char* architectures) {
  std::vector<int> found;
  for (const int capability : {75, 80, 86, 89, 90, 100, 103, 110, 120, 121}) {
    if (has_code_for(architectures, capability)) {
      found.push_back(capability);
    }
  }
  return found;
}

TEST_CASE("code of an architecture runs on the GPUs that can run it") {
  CHECK(served("89-real 90a-real 100-real") == std::vector{89, 90, 100, 103});
  CHECK(served("80-real") == std::vector{80, 86, 89});
  CHECK(served("90a-real") == std::vector{90});
  CHECK(served("100f-real") == std::vector{100, 103});
  CHECK(served("100a-virtual") == std::vector{100});
  CHECK(served("89-real;100-virtual") == std::vector{89, 100, 103, 110, 120, 121});
  CHECK(served("120") == std::vector{120, 121});
  CHECK(served("").empty());
  CHECK(served("native").size() == 10);
  CHECK(capability_text(89) == "8.9");
  CHECK(capability_text(120) == "12.0");
}

#if defined(FP8TRAIN_CUDA_SHIM)
TEST_CASE("a GPU that this build has no code for is refused in words") {
  for (const int capability : {75, 80, 86, 110, 120}) {
    CAPTURE(capability);
    shim::set_capability(capability);
    const std::string why = why_cuda_is_unusable();
    CHECK_THAT(why, Catch::Contains("compute capability " + capability_text(capability)));
    if (capability >= 80) {
      CHECK_THAT(why, Catch::Contains("no code (it has 89-real 90a-real 100-real)") &&
                          Catch::Contains("-DFP8TRAIN_CUDA_ARCHITECTURES=" +
                                          std::to_string(capability) + "-real"));
    }
    CHECK_THROWS_WITH(make_device(DeviceKind::cuda), Catch::Contains(why));
  }
  for (const int capability : {89, 90, 100, 103}) {
    CAPTURE(capability);
    shim::set_capability(capability);
    CHECK(why_cuda_is_unusable().empty());
    CHECK_NOTHROW(make_device(DeviceKind::cuda));
  }
  shim::set_capability(120);
  const test::EnvironmentScope other("FP8TRAIN_CUDA_CODE", "100-real 120-real");
  CHECK(why_cuda_is_unusable().empty());
  shim::set_capability(90);
  CHECK_THAT(why_cuda_is_unusable(), Catch::Contains("(it has 100-real 120-real)"));
}

TEST_CASE("a GPU is used or refused by its own facts, whatever the others are") {
  shim::set_capability(90);
  shim::set_device_count(2);
  shim::set_first_capability(120);
  CHECK(why_cuda_is_unusable(1).empty());
  CHECK_NOTHROW(make_device(DeviceKind::cuda, 1));
  CHECK_THAT(why_cuda_is_unusable(0), Catch::Contains("no code"));
  CHECK_THROWS_WITH(make_device(DeviceKind::cuda, 0),
                    Catch::StartsWith("device: cuda was asked for, but the GPU"));
  shim::set_capability(120);
  shim::set_first_capability(90);
  CHECK_NOTHROW(make_device(DeviceKind::cuda, 0));
  CHECK_THROWS_WITH(make_device(DeviceKind::cuda, 1), Catch::StartsWith("GPU 1: the GPU"));
  CHECK_THROWS_WITH(
      make_device(DeviceKind::cuda, 2),
      Catch::Equals("GPU 2 was asked for, but this process sees 2 (numbered from 0)"));
  shim::set_first_capability(0);
  shim::set_capability(90);
  shim::set_device_count(1);
}
#endif

}  // namespace
}  // namespace fp8train
