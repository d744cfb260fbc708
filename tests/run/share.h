#pragma once
// The share of a sweep over many cases that one run of a test takes.

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <vector>

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
  template <typename T>
  std::vector<T> of(const std::vector<T>& all) const {
    std::vector<T> some;
    for (size_t i = 0; i < all.size(); ++i) {
      if (has(i)) some.push_back(all[i]);
    }
    return some;
  }
};

}  // namespace fp8train::test
