#include "base/cache_folder.h"

#include <cstdlib>

namespace fp8train {
namespace {

/// Null where the variable is not set or empty.
const char* environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? nullptr : value;
}

}  // namespace

std::filesystem::path cache_folder() {
  if (const char* own = environment("FP8TRAIN_CACHE_DIR")) {
    return own;
  }
  if (const char* caches = environment("XDG_CACHE_HOME")) {
    return std::filesystem::path(caches) / "fp8train";
  }
  if (const char* home = environment("HOME")) {
    return std::filesystem::path(home) / ".cache" / "fp8train";
  }
  return std::filesystem::temp_directory_path() / "fp8train";
}

}  // namespace fp8train
