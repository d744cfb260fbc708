#include "base/json_error.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace fp8train {
namespace {

/// "line:column: what" of what the parser refuses.
std::string refusal(const std::string& text) {
  try {
    return nlohmann::json::parse(text).dump();
  } catch (const nlohmann::json::parse_error& failure) {
    const JsonError error = json_error(text, failure.byte);
    return fmt::format("{}:{}: {}", error.line, error.column, error.what);
  }
}

TEST_CASE("errors in JSON are said with line and column") {
  CHECK(refusal("{\n  \"a\": [1,\n  2\n") == "2:8: this [ is not closed before the text ends");
  CHECK(refusal("{\"a\": \"b") == "1:7: this \" is not closed before the text ends");
  CHECK(refusal("") == "1:1: there is nothing in it");
  CHECK(refusal("{\"a\": 1,\n}") == "1:8: a comma before }");
  CHECK(refusal("{\"a\": 1\n \"b\": 2}") ==
        "2:2: unexpected text; is a comma or a colon missing before it?");
  CHECK(refusal("{\"a\": 1}}") == "1:9: more text after the end of the value");
  CHECK(refusal("{'a': 1}") == "1:2: unexpected ''a''; texts have double quotes in JSON");
  CHECK(refusal("{\"a\": None}") == "1:7: unexpected 'None'; JSON has null, true and false");
  CHECK(refusal("{\"a\": NaN}") == "1:7: unexpected 'NaN'; JSON has no such number");
  CHECK(refusal("# a\n{}") == "1:1: unexpected '#'; JSON has no comments");
  CHECK(refusal("{\"a\": \"\xFF\"}") == "1:8: bytes that are not UTF-8");
  CHECK(refusal("{\"a\": \"b\n\"}") ==
        "1:9: a line break within a text (\\n, or is its second quote missing?)");
  CHECK(refusal("{\"a\": \"C:\\d\"}") == "1:11: an unknown escape; a backslash is written \\\\");
}

TEST_CASE("what the JSON library says comes without its own names") {
  const auto said = [](const auto& work) -> std::string {
    try {
      work();
    } catch (const nlohmann::json::exception& error) {
      return plain_json_error(error);
    }
    return "nothing";
  };
  const nlohmann::json json = {{"a", "text"}};
  CHECK(said([&] { json.at("a").get<double>(); }) == "type must be number, but is string");
  CHECK(said([&] { json.at("b"); }) == "key 'b' not found");
  CHECK(said([&] { const nlohmann::json none = nlohmann::json::parse("1e999"); }) ==
        "number overflow parsing '1e999'");
  CHECK(plain_json_error(std::runtime_error("[json] is fine")) == "[json] is fine");
  CHECK(not_json("state.json", "{\n  nul}", 7) == "state.json:2:3: not JSON: unexpected 'nul'");
}

TEST_CASE("any byte of any text has a message") {
  const std::string text = "{\"a\\\"\": [1, {\"b\": tru}], \"\xC3\x28\": -}\n\t}";
  for (size_t length = 0; length <= text.size(); ++length) {
    for (size_t byte = 0; byte <= length + 2; ++byte) {
      const JsonError error = json_error(std::string_view(text).substr(0, length), byte);
      CHECK_FALSE(error.what.empty());
      CHECK(error.line >= 1);
      CHECK(error.column >= 1);
    }
  }
}

}  // namespace
}  // namespace fp8train
