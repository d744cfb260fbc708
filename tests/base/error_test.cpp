#include "base/error.h"

#include <catch2/catch.hpp>
#include <type_traits>

namespace fp8train {

TEST_CASE("check throws InternalError with location and promise", "[base]") {
  CHECK_NOTHROW(check(true, "never seen"));
  CHECK_THROWS_AS(check(false, "sizes differ"), InternalError);
  CHECK_THROWS_WITH(check(false, "sizes differ"),
                    Catch::Contains("error_test.cpp") && Catch::Contains("sizes differ"));
}

TEST_CASE("every typed error is an Error", "[base]") {
  CHECK_THROWS_AS(throw ConfigError("x"), Error);
  CHECK_THROWS_AS(throw DataError("x"), Error);
  CHECK_THROWS_AS(throw CheckpointError("x"), Error);
  CHECK_THROWS_AS(throw DeviceError("x"), Error);
  CHECK_THROWS_AS(throw CommError("x"), Error);
  CHECK_THROWS_AS(throw NumericError("x"), Error);
  CHECK_THROWS_WITH(throw NumericError("loss is NaN"), "loss is NaN");
  STATIC_REQUIRE_FALSE(std::is_base_of_v<ConfigError, DataError>);
}

}  // namespace fp8train
