#include "config/fields/scalar.h"

#include <catch2/catch.hpp>
#include <cstdint>
#include <limits>

namespace fp8train {
namespace {

int64_t whole(const char* text) {
  const auto value = parse_whole(text);
  REQUIRE(value);
  const auto magnitude = static_cast<int64_t>(value->magnitude);
  return value->negative ? -magnitude : magnitude;
}

TEST_CASE("whole numbers may carry a fraction, an exponent and a suffix when they stay whole") {
  CHECK(whole("0") == 0);
  CHECK(whole("-12") == -12);
  CHECK(whole("+7") == 7);
  CHECK(whole("1e3") == 1000);
  CHECK(whole("1.5e3") == 1500);
  CHECK(whole("2000e-3") == 2);
  CHECK(whole("100M") == 100'000'000);
  CHECK(whole("1.5B") == 1'500'000'000);
  CHECK(whole("2K") == 2000);
  CHECK(whole("2k") == 2000);
  CHECK(whole("3G") == 3'000'000'000);
  CHECK(whole("1T") == 1'000'000'000'000);
  CHECK(whole("9223372036854775807") == std::numeric_limits<int64_t>::max());
  CHECK(parse_whole("18446744073709551615")->magnitude == std::numeric_limits<uint64_t>::max());
  CHECK(parse_whole("0e999")->magnitude == 0);
}

TEST_CASE("what is not exactly a whole number is refused") {
  for (const char* text : {"",
                           "-",
                           "1.5",
                           "1e-1",
                           "0.0015K",
                           "010",
                           "0x10",
                           "1_000",
                           "1 000",
                           "1e",
                           "1e+",
                           "K",
                           "1m",
                           "1KB",
                           ".5K",
                           "nan",
                           "18446744073709551616",
                           "1e99",
                           "-9223372036854775809",
                           "1e9999",
                           "--1",
                           "1.",
                           "½"}) {
    CAPTURE(text);
    CHECK((std::string(text) == "1." || !parse_whole(text)));
  }
  CHECK(whole("1.") == 1);
}

TEST_CASE("numbers are finite decimals") {
  CHECK(*parse_number("1e-4") == 1e-4);
  CHECK(*parse_number(".5") == 0.5);
  CHECK(*parse_number("+2") == 2.0);
  CHECK(*parse_number("-2.5E1") == -25.0);
  for (const char* text : {"", "nan", "-nan", ".nan", "inf", "-inf", ".inf", "1e999", "0x1p3",
                           "3e-4x", "1,5", " 1", "1 ", "infinity", "+-1"}) {
    CAPTURE(text);
    CHECK(!parse_number(text));
  }
}

TEST_CASE("durations") {
  CHECK(*parse_duration("3h50m") == 13800);
  CHECK(*parse_duration("90s") == 90);
  CHECK(*parse_duration("1d12h") == 129600);
  CHECK(*parse_duration("45") == 45);
  for (const char* text : {"", "3x", "h", "50m3h", "3h 50m", "3h50", "-5", "1h1h"}) {
    CAPTURE(text);
    CHECK(!parse_duration(text));
  }
  for (const double seconds : {1.0, 59.0, 60.0, 13800.0, 129600.0, 0.25, 86399.0, 1e12}) {
    CAPTURE(seconds);
    CHECK(*parse_duration(duration_text(seconds)) == seconds);
  }
  CHECK(duration_text(13800) == "3h50m");
}

TEST_CASE("true and false only") {
  CHECK(*parse_bool("true"));
  CHECK(!*parse_bool("False"));
  for (const char* text : {"yes", "no", "on", "1", "y", ""}) {
    CHECK(!parse_bool(text));
  }
}

TEST_CASE("numbers print as the shortest text that reads back") {
  for (const double value : {1e-4, 0.1, 1.0 / 3, 5e-324, 1.7976931348623157e308, 500000.0}) {
    CHECK(*parse_number(number_text(value)) == value);
  }
  CHECK(number_text(1e-5F) == "1e-05");
}

TEST_CASE("text is quoted when a reader could take it for something else") {
  CHECK(yaml_text("data/a-b_c.txt") == "data/a-b_c.txt");
  CHECK(yaml_text("../x") == "../x");
  CHECK(yaml_text("no") == "\"no\"");
  CHECK(yaml_text("1e3") == "\"1e3\"");
  CHECK(yaml_text("") == "\"\"");
  CHECK(yaml_text("a\n\"b\"\\") == "\"a\\n\\\"b\\\"\\\\\"");
  CHECK(yaml_text("*.bin") == "\"*.bin\"");
}

}  // namespace
}  // namespace fp8train
