#include "base/cache_folder.h"

#include <pwd.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "support/environment.h"

using fp8train::cache_folder;
using fp8train::test::EnvironmentScope;

TEST_CASE("the cache folder follows its variables in their order", "[base]") {
  const EnvironmentScope home("HOME", "/home/user");
  {
    const EnvironmentScope caches("XDG_CACHE_HOME", "/caches");
    const EnvironmentScope own("FP8TRAIN_CACHE_DIR", "/own");
    CHECK(cache_folder() == "/own");
    const EnvironmentScope none("FP8TRAIN_CACHE_DIR", "");
    CHECK(cache_folder() == "/caches/fp8train");
  }
  const EnvironmentScope none("XDG_CACHE_HOME", "");
  CHECK(cache_folder() == "/home/user/.cache/fp8train");
  const EnvironmentScope unknown("HOME", "");
  const passwd* const account = getpwuid(geteuid());
  if (account != nullptr && *account->pw_dir != '\0') {
    CHECK(cache_folder() == std::filesystem::path(account->pw_dir) / ".cache/fp8train");
  }
}
