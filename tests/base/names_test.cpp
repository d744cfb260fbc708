#include "base/names.h"

#include <catch2/catch.hpp>
#include <cstdint>

using namespace fp8train;

TEST_CASE("a table of names gives the name of a value, and the value of a name", "[base]") {
  enum class Size : uint8_t { large, small };
  static constexpr std::pair<Size, std::string_view> kSizes[] = {{Size::small, "small"},
                                                                 {Size::large, "large"}};
  static_assert(name_in(kSizes, Size::large) == "large");
  static_assert(name_in(kSizes, Size::small) == "small");
  CHECK(value_in(kSizes, "small") == Size::small);
  CHECK(value_in(kSizes, "large") == Size::large);
  CHECK_FALSE(value_in(kSizes, "Large"));
  CHECK_FALSE(value_in(kSizes, ""));
}
