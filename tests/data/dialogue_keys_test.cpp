// Keys of a record next to its messages that would change what is learned.

#include <catch2/catch.hpp>
#include <string>

#include "base/error.h"
#include "data/chat/dialogue.h"

namespace fp8train {
namespace {

/// A record of one answer, with more keys.
std::string record_with(const std::string& more) {
  return R"({"messages": [{"role": "assistant", "content": "a"}], )" + more + "}";
}

TEST_CASE("values that say nothing are read over", "[data][chat]") {
  for (const char* nothing :
       {"null", "[]", "{}", R"("")", R"("[]")", R"(" [ ] ")", R"("null")", R"("{}")"}) {
    for (const char* key : {"tools", "functions"}) {
      CAPTURE(key, nothing);
      const Dialogue dialogue =
          read_dialogue(record_with(std::string("\"") + key + "\": " + nothing), "f:1");
      CHECK(dialogue.size() == 1);
    }
  }
  for (const char* one :
       {R"("weight": 1)", R"("weight": 1.0)", R"("train": true)", R"("loss": 1)"}) {
    CAPTURE(one);
    CHECK(read_dialogue(record_with(one), "f:1").at(0).is_target);
  }
}

TEST_CASE("values that say something are refused", "[data][chat]") {
  for (const auto& [more, message] :
       {std::pair{R"("tools": "[{}]")", "f:1: 'tools' is not read: tools and calls of functions"},
        {R"("tools": "none")", "f:1: 'tools' is not read: tools and calls of functions"},
        {R"("weight": 0)", "f:1: 'weight' is not read: single tokens and records have no weights"},
        {R"("weight": "1")", "f:1: 'weight' is not read: "},
        {R"("train": false)", "f:1: 'train' is not read: single tokens and records have no"},
        {R"("label": 1)", "f:1: 'label' is not read: good and bad answers"},
        {R"("images": "[]")", "f:1: 'images' is not read: pictures"},
        {R"("documents": "[{}]")", "f:1: 'documents' is not read: tools and calls of functions"},
        {R"("input_ids": [1])", "f:1: 'input_ids' is not read: a record is either messages"},
        {R"("history": "a")", "f:1: 'history' is not read: earlier messages"}}) {
    CAPTURE(more);
    CHECK_THROWS_WITH(read_dialogue(record_with(more), "f:1"), Catch::Contains(message));
  }
}

}  // namespace
}  // namespace fp8train
