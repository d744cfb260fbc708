#include "train/records/run_statistics.h"

#include <catch2/catch.hpp>

namespace fp8train {
namespace {

SectionSeconds seconds(double data, double step, double exchange) {
  SectionSeconds made = {};
  made[static_cast<size_t>(Section::data)] = data;
  made[static_cast<size_t>(Section::step)] = step;
  made[static_cast<size_t>(Section::exchange)] = exchange;
  return made;
}

TEST_CASE("the slowest rank is the one that works longest, not the one that waits", "[straggler]") {
  const auto found =
      find_straggler({seconds(1, 4, 5), seconds(1, 3, 6), seconds(5, 4, 1), seconds(1, 5, 4)});
  REQUIRE(found.has_value());
  CHECK(found->rank == 2);
  CHECK(found->section == Section::data);
  CHECK(found->seconds == 9);
  CHECK(found->median_seconds == 5);
}

TEST_CASE("of two ranks the slower one is behind the other", "[straggler]") {
  const auto found = find_straggler({seconds(1, 6, 0), seconds(2, 3, 2)});
  REQUIRE(found.has_value());
  CHECK(found->rank == 0);
  CHECK(found->section == Section::step);
  CHECK(found->median_seconds == 5);
}

TEST_CASE("a single rank is behind nobody", "[straggler]") {
  CHECK_FALSE(find_straggler({seconds(1, 6, 0)}).has_value());
  CHECK_FALSE(find_straggler({}).has_value());
}

}  // namespace
}  // namespace fp8train
