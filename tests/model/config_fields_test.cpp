// Typed access to the fields of a config.json: each kind of a wrong value is named with its field.

#include "model/families/config_fields.h"

#include <catch2/catch.hpp>
#include <limits>

#include "base/error.h"
#include "model/families/hf_fields.h"
#include "support/files.h"

namespace fp8train {
namespace {

using Catch::Contains;
using test::message_of;

ConfigObject object_of(ConfigObject value) {
  ConfigObject object;
  set(object, "key", std::move(value));
  return object;
}

TEST_CASE("a missing field has its default, and so has null") {
  for (const ConfigObject& object : {ConfigObject(), object_of({})}) {
    const ConfigFields fields(object, "config.json");
    CHECK_FALSE(fields.has("key"));
    CHECK(fields.mentions("key") == !object.empty());
    CHECK(fields.extent("key", 7) == 7);
    CHECK(fields.count("key", 0) == 0);
    CHECK(fields.positive("key", 0.5) == 0.5);
    CHECK(fields.number("key", -1.5) == -1.5);
    CHECK(fields.flag("key", true));
    CHECK(fields.text("key", "x") == "x");
    CHECK(fields.texts("key").empty());
    CHECK(fields.ids("key").empty());
    if (object.empty()) {
      CHECK(message_of<CheckpointError>([&] { (void)fields.at("key"); }) ==
            "config.json: 'key' is missing");
    }
    CHECK(message_of<CheckpointError>([&] { fields.positive("key"); }) ==
          "config.json: 'key' is missing");
  }
}

TEST_CASE("values of the right type are returned, others are named") {
  const ConfigObject whole = int64_t{3};
  const ConfigObject fraction = 0.25;
  const ConfigObject text = "three";
  const ConfigObject flag = true;
  const ConfigObject ids = ConfigObject::array({1, 2});
  const ConfigObject names = ConfigObject::array({"a", "b"});
  const ConfigObject nested = object_of(int64_t{5});
  const ConfigObject* const all[] = {&whole, &fraction, &text, &flag, &ids, &names, &nested};
  /// How many of all are read without an error.
  const auto accepted = [&](const auto& read) {
    std::vector<const ConfigObject*> taken;
    for (const ConfigObject* value : all) {
      const ConfigObject object = object_of(*value);
      try {
        read(ConfigFields(object, "config.json"));
        taken.push_back(value);
      } catch (const CheckpointError& error) {
        CHECK_THAT(error.what(), Contains("config.json: 'key' is "));
      }
    }
    return taken;
  };
  using Taken = std::vector<const ConfigObject*>;
  CHECK(accepted([](const ConfigFields& f) { f.extent("key"); }) == Taken{&whole});
  CHECK(accepted([](const ConfigFields& f) { f.count("key", 0); }) == Taken{&whole});
  CHECK(accepted([](const ConfigFields& f) { f.number("key", 0); }) == Taken{&whole, &fraction});
  CHECK(accepted([](const ConfigFields& f) { f.positive("key"); }) == Taken{&whole, &fraction});
  CHECK(accepted([](const ConfigFields& f) { f.flag("key", false); }) == Taken{&flag});
  CHECK(accepted([](const ConfigFields& f) { f.text("key", ""); }) == Taken{&text});
  CHECK(accepted([](const ConfigFields& f) { f.texts("key"); }) == Taken{&names});
  CHECK(accepted([](const ConfigFields& f) { f.ids("key"); }) == Taken{&whole, &ids});
  CHECK(accepted([](const ConfigFields& f) { f.object("key"); }) == Taken{&nested});
  const ConfigObject of_whole = object_of(whole);
  const ConfigObject of_flag = object_of(flag);
  const ConfigObject of_nested = object_of(nested);
  CHECK(ConfigFields(of_whole, "a").extent("key") == 3);
  CHECK(ConfigFields(of_whole, "a").number("key", 0) == 3.0);
  CHECK(ConfigFields(of_flag, "a").flag("key", false));
  CHECK(ConfigFields(of_nested, "a").object("key").extent("key") == 5);
  const ConfigObject inner = object_of(object_of("x"));
  CHECK(message_of<CheckpointError>([&] {
          ConfigFields(inner, "a").object("key").extent("key");
        }) == R"(a: key: 'key' is "x", not a whole number up to 2147483648)");
}

TEST_CASE("numbers beyond their bounds are refused with them") {
  const auto refusal = [](ConfigObject value, const auto& read) {
    const ConfigObject object = object_of(std::move(value));
    return message_of<CheckpointError>([&] { read(ConfigFields(object, "f")); });
  };
  const auto extent = [](const ConfigFields& fields) { fields.extent("key"); };
  CHECK(refusal(int64_t{0}, extent) == "f: 'key' is 0; it must be between 1 and 2147483648");
  CHECK_THAT(refusal(int64_t{1} << 40, extent), Contains("it must be between 1 and 2147483648"));
  CHECK_THAT(refusal(int64_t{-1}, [](const ConfigFields& f) { f.count("key", 0); }),
             Contains("between 0 and"));
  for (const double value : {0.0, -1.0, std::numeric_limits<double>::infinity()}) {
    CHECK_THAT(refusal(value, [](const ConfigFields& f) { f.positive("key"); }),
               Contains("it must be above 0"));
  }
  CHECK_THAT(refusal(ConfigObject::array({1, -1}), [](const ConfigFields& f) { f.ids("key"); }),
             Contains("not an id or a list of them"));
}

TEST_CASE("setting a field replaces it where it is and keeps the order of the others") {
  ConfigObject object;
  for (const char* key : {"a", "b", "c"}) {
    set(object, key, int64_t{1});
  }
  set(object, "b", "new");
  REQUIRE(object.size() == 3);
  CHECK(object.dump() == R"({"a":1,"b":"new","c":1})");
}

}  // namespace
}  // namespace fp8train
