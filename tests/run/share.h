#pragma once
// The share of a sweep over many cases that one run of a test takes.

#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace fp8train::test {

/// Of all cases one of `every`, another one with each FP8TRAIN_TEST_ROTATION; all: every case.
struct Share {
  size_t every = 1, first = 0;

  static Share of_environment(size_t every) {
    const char* const rotation = std::getenv("FP8TRAIN_TEST_ROTATION");
    if (rotation != nullptr && std::strcmp(rotation, "all") == 0) {
      return {};
    }
    return {every, rotation == nullptr ? 0 : std::strtoul(rotation, nullptr, 10) % every};
  }
  bool has(size_t index) const { return index % every == first; }
};

}  // namespace fp8train::test
