#include "base/cache_folder.h"

#include <catch2/catch.hpp>

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
}
