// In the place of cuda_ops_test and its like when scripts/gpu_check.sh is tested: a test case for
// each topic, one of which does what GPU_CHECK_SAMPLE says.

#include <unistd.h>
#include <catch2/catch.hpp>

#include <cstdlib>
#include <string>

namespace {

bool spoilt = false;  // as a device is after an error that stays

std::string mode() {
  const char* const text = std::getenv("GPU_CHECK_SAMPLE");
  return text == nullptr ? "" : text;
}

void sleep_while_parent_lives() {
  for (const pid_t parent = getppid(); getppid() == parent;) {
    usleep(20000);
  }
}

TEST_CASE("every code", "[cuda][quantize][exhaustive]") {
  CHECK(true);
}
TEST_CASE("a cast", "[cuda][quantize][small]") {
  CHECK(true);
}
TEST_CASE("a product", "[cuda][gemm]") {
  if (mode() == "sleep") {
    sleep_while_parent_lives();
  }
  CHECK(true);
}

TEST_CASE(
    "norm backward, whose name has [brackets], a comma and so many words that a line of 79 ends",
    "[cuda][norm][small]") {
  if (mode() == "fail") {
    spoilt = true;
    SECTION("in bf16") {
      for (int row = 0; row < 7; ++row) {
        INFO("row " << row);
        CHECK(row == 100);
      }
    }
  }
  if (mode() == "crash") {
    std::abort();
  }
  CHECK(true);
}

TEST_CASE("a norm after it", "[cuda][norm]") {
  CHECK_FALSE(spoilt);
}
TEST_CASE("swiglu", "[cuda][activation][small]") {
  CHECK(true);
}
TEST_CASE("an update", "[cuda][optimizer][small]") {
  CHECK(true);
}
TEST_CASE("a step on cuda gives the cpu's loss and gradients, Llama", "[cuda]") {
  CHECK(true);
}
TEST_CASE("a loss", "[cuda][cross_entropy]") {
  CHECK(true);
}
TEST_CASE("attention", "[cuda][attention]") {
  CHECK(true);
}
TEST_CASE("cuDNN's attention", "[cuda][attention][cudnn]") {
  CHECK(true);
}
TEST_CASE("of no topic", "[cuda][rope]") {
  CHECK(true);
}
TEST_CASE("ranks", "[cuda][nccl]") {
  CHECK(true);
}

}  // namespace
