#pragma once
// Smaller sizes where a sanitizer makes everything several times as slow. Each path is still run.

#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace fp8train::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

/// Whether case number `index` of a long list runs. Under a sanitizer one of `every` does: those
/// that the variable FP8TRAIN_TEST_ROTATION says (a number, 0 by default; `all`), which
/// scripts/test.sh changes with each commit. `every` divides the length of no inner list, so that
/// each of their values is met in every run.
inline bool is_in_rotation(size_t index, size_t every = 7) {
  const char* const rotation = std::getenv("FP8TRAIN_TEST_ROTATION");
  if (!kSanitized || (rotation != nullptr && std::strcmp(rotation, "all") == 0)) {
    return true;
  }
  const size_t first = rotation == nullptr ? 0 : std::strtoul(rotation, nullptr, 10);
  return index % every == first % every;
}

}  // namespace fp8train::test
