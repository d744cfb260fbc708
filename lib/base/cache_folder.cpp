#include "base/cache_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "base/error.h"
#include "base/written_path.h"

namespace fp8train {
namespace {

/// Null where the variable is not set or empty.
const char* environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? nullptr : value;
}

/// Returns fp8train-UID in the folder of temporary files, or a new folder where somebody else may
/// have written into that one.
std::filesystem::path private_temporary_folder() {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / "fp8train-";
  std::string shared = folder.string() + std::to_string(::geteuid());
  struct stat found = {};
  ::mkdir(shared.c_str(), 0700);
  if (::lstat(shared.c_str(), &found) == 0 && S_ISDIR(found.st_mode) &&
      found.st_uid == ::geteuid() && (found.st_mode & (S_IWGRP | S_IWOTH)) == 0) {
    return shared;
  }
  std::string made = folder.string() + "XXXXXX";
  if (::mkdtemp(made.data()) == nullptr) {
    throw DeviceError("cannot create " + made + "; set FP8TRAIN_CACHE_DIR");
  }
  return made;
}

}  // namespace

std::filesystem::path cache_folder() {
  if (const char* own = environment("FP8TRAIN_CACHE_DIR")) {
    return own;
  }
  if (const char* caches = environment("XDG_CACHE_HOME")) {
    return std::filesystem::path(caches) / "fp8train";
  }
  const std::string home = home_directory();
  return home.empty() ? private_temporary_folder()
                      : std::filesystem::path(home) / ".cache" / "fp8train";
}

}  // namespace fp8train
