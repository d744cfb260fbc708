#include "device/gpu_monitor.h"

#include <dlfcn.h>

#include <catch2/catch.hpp>

using namespace fp8train;

TEST_CASE("the state of GPUs is what the driver's library reports") {
  void* const fake = dlopen(FP8TRAIN_FAKE_GPU_DRIVER, RTLD_NOW);  // as CUDA opens its driver
  REQUIRE(fake != nullptr);
  const auto users = reinterpret_cast<int (*)()>(dlsym(fake, "fake_users"));
  {
    const GpuMonitor monitor(FP8TRAIN_FAKE_GPU_DRIVER, FP8TRAIN_FAKE_GPU_DRIVER);
    CHECK(users() == 1);
    const std::vector<GpuState> all = monitor.all();
    REQUIRE(all.size() == 2);
    CHECK(all[0].text() == "NVIDIA Fake, 76 W, 345 MHz, 31 °C");
    CHECK(all[1].text() == "NVIDIA Fake, 698 W, 1755 MHz, slowed down by power and heat");
    const std::optional<GpuState> current = monitor.current();
    REQUIRE(current);
    CHECK(current->watts == 698.0);
    CHECK(current->clock_mhz == 1755.0);
    CHECK_FALSE(current->celsius);
    CHECK(current->throttled_by == std::vector<std::string>{"power", "heat"});
  }
  CHECK(users() == 0);
  // Without a driver that the process has opened it computes on no GPU.
  const GpuMonitor elsewhere(FP8TRAIN_FAKE_GPU_DRIVER, "libnone.so.1");
  CHECK(elsewhere.all().size() == 2);
  CHECK_FALSE(elsewhere.current());
  dlclose(fake);
}

TEST_CASE("without the driver's library nothing is known of GPUs") {
  const GpuMonitor monitor("libnone.so.1", "libnone.so.1");
  CHECK(monitor.all().empty());
  CHECK_FALSE(monitor.current());
}
