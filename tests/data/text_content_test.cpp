#include "data/readers/text_content.h"

#include <catch2/catch.hpp>
#include <string>

namespace fp8train {
namespace {

TEST_CASE("JSON is told from text that begins like it") {
  for (const char* text : {"{\n \"a\": 1\n}", "\xEF\xBB\xBF {\"a\": [\"}\", \"\\\"{\"]}\n",
                           "{\n\"a\": 1}\n{\n\"a\": 2}\n"}) {
    CAPTURE(text);
    CHECK(json_kind(text, true) == JsonKind::objects);
  }
  for (const char* text : {"[1, 2]", "[\n\"a\",\n\"b\"\n]\n", "[[]  , [3]]"}) {
    CAPTURE(text);
    CHECK(json_kind(text, true) == JsonKind::array);
  }
  for (const char* text : {"", "{", "[", "{}", "[]", "{ this is no JSON }", "[ ] a task",
                           "[\"Music\"] a song", "[12] Author et al.", "{\"a\": 1} and more",
                           "[1] [2]", "{\"a\": 1", "{{name}}, hello", "a {\"b\": 1}"}) {
    CAPTURE(text);
    CHECK(json_kind(text, true) == JsonKind::none);
  }
}

TEST_CASE("the beginning of JSON may end anywhere") {
  const std::string text = "{\n \"k\u00E9y\": [1.5, true, null, \"\u00E9\\n\"],\n \"b\": {}\n}";
  for (size_t length = text.find(':'); length <= text.size(); ++length) {
    CAPTURE(length);
    CHECK(json_kind(text.substr(0, length), false) == JsonKind::objects);
  }
  CHECK(json_kind("[\"", false) == JsonKind::none);  // nothing in it yet
  CHECK(json_kind("{\"a\": b, and so on for many words", false) == JsonKind::none);
}

TEST_CASE("tables are told from text with commas") {
  for (const char* text :
       {"id,text\n1,a\n2,b\n", "id;text\r\n1;a\r\n2;b\r\n", "id\ttext\n1\ta\n2\tb",
        "\"id\",\"text\"\n1,\"a, \"\"b\"\"\nc\"\n2,b\n\n",
        "\xEF\xBB\xBFinstruction,input,output\n"
        "a,,b\nc,,d\n"}) {
    CAPTURE(text);
    CHECK(is_table(text, true));
  }
  for (const char* text :
       {"", "id,text\n", "id,text\n1,a\n", "id,text\n1,a\n2\n", "id,id\n1,a\n2,b\n",
        "1,2\n3,4\n5,6\n", "Dear John,\nhow are you,\nI ask,\n",
        "Roses are red, a\nb c, d\ne f, g\n",
        "\u5E8A\u524D,\u7591\u662F\n\u4E3E\u5934,\u4F4E\u5934\n\u5E8A\u524D,\u7591\u662F\n",
        "x;\ny;\nz;\n"}) {
    CAPTURE(text);
    CHECK_FALSE(is_table(text, true));
  }
  // A row that is cut does not count.
  CHECK(is_table("id,text\n1,a\n2,b\n3", false));
  CHECK_FALSE(is_table("id,text\n1,a\n2,b\n3", true));
  CHECK(is_table("id,text\n1,a\n2,b\n3,\"c\nd, e\n", false));
}

}  // namespace
}  // namespace fp8train
