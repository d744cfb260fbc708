#include "base/clock.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

namespace fp8train {
namespace {

TEST_CASE("a gap in which the process was stopped counts as the longest one") {
  RunningTime time(0.01);
  for (int i = 0; i < 3; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    time.seconds();
  }
  CHECK(time.seconds() >= 0.03);
  CHECK(time.seconds() < 0.06);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  CHECK(time.seconds() < 0.1);
}

}  // namespace
}  // namespace fp8train
