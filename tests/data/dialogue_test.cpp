// Dialogues of records.

#include "data/chat/dialogue.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace fp8train::test {
namespace {

TEST_CASE("records of other programs are dialogues too", "[data][chat]") {
  const Dialogue shared = read_dialogue(
      R"({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]})",
      "f:1");
  REQUIRE(shared.size() == 2);
  CHECK(shared[0].role == ChatRole::user);
  CHECK((shared[1].role == ChatRole::assistant && shared[1].is_target));
  const Dialogue pair = read_dialogue(R"({"prompt": "a", "completion": "b"})", "f:1");
  CHECK((pair[0].content == "a" && pair[1].content == "b" && pair[1].is_target));
  CHECK((pair[0].role == ChatRole::none && pair[1].role == ChatRole::none));  // no template
  const Dialogue task = read_dialogue(
      R"({"instruction": "Sum up.", "input": "a b", "output": "c", "system": "Be brief."})", "f:1");
  REQUIRE(task.size() == 3);
  CHECK((task[0].role == ChatRole::system && task[0].content == "Be brief."));
  CHECK((task[1].role == ChatRole::user && task[1].content == "Sum up.\na b"));
  CHECK((task[2].content == "c" && task[2].is_target));
  const Dialogue question = read_dialogue(R"({"question": "a", "answer": "b"})", "f:1");
  CHECK((question[0].role == ChatRole::user && question[1].role == ChatRole::assistant));
  const Dialogue lists = read_dialogue(
      R"({"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
          {"role": "user", "content": "c"}], "completion": [{"role": "assistant", "content": "d"}]})",
      "f:1");
  REQUIRE(lists.size() == 4);
  CHECK((!lists[1].is_target && lists[3].is_target));
  const Dialogue weighted = read_dialogue(
      R"({"messages": [{"role": "assistant", "content": "a", "weight": 0},
          {"role": "assistant", "content": "b", "weight": 1}]})",
      "f:1");
  CHECK((!weighted[0].is_target && weighted[1].is_target));
  const Dialogue trained = read_dialogue(
      R"({"messages": [{"role": "assistant", "content": "a", "train": false},
          {"role": "assistant", "content": "b", "loss": true},
          {"role": "assistant", "content": "b", "weight": 1, "loss": false}]})",
      "f:1");
  CHECK((!trained[0].is_target && trained[1].is_target && !trained[2].is_target));
}

TEST_CASE("a key of a record is read, named, or refused if it changes what is learned",
          "[data][chat]") {
  const Dialogue shared = read_dialogue(
      R"({"system": "s", "conversations": [{"from": "human", "value": "a"},
          {"from": "gpt", "value": "b"}]})",
      "f:1");
  REQUIRE(shared.size() == 3);
  CHECK((shared[0].role == ChatRole::system && shared[0].content == "s" && !shared[0].is_target));
  std::string ignored;
  const auto note = [&](const std::string& key) { ignored += key + " "; };
  const std::string answer = R"("messages": [{"role": "assistant", "content": "a")";
  read_dialogue("{" + answer + R"(, "name": "n", "tool_calls": []}], "id": 1, "tools": null,
      "functions": [], "source": "x", "images": ""})",
                "f:1", note);
  CHECK(ignored == "messages.name id source ");
  const std::pair<std::string, const char*> refused[] = {
      {answer + R"(}], "tools": [{}])", "f:1: 'tools' is not read: tools and calls of functions"},
      {answer + R"(}], "label": false)", "'label' is not read: good and bad answers"},
      {R"("instruction": [], "input": "b", "output": "c")", "'input' next to a list of messages"},
      {answer + R"(, "function_call": {"name": "f"}}])", "'messages.function_call' is not read"},
      {answer + R"(, "weight": 0.5}])", "message 1: 'weight' is 0.5; expected 0"},
      {answer + R"(, "train": "no"}])", "message 1: 'train' is \"no\""},
      {R"("messages": [{"role": "system", "content": "a"}], "system": "b")",
       "'system' next to another system message"},
      {R"("prompt": "a", "completion": "b", "system": "c")", "'system' next to a prompt"}};
  for (const auto& [json, message] : refused) {
    CHECK_THROWS_WITH(read_dialogue("{" + json + "}", "f:1"), Catch::Contains(message));
  }
  for (const std::string key :
       {"functions", "rejected", "kto_tag", "weight", "train", "input_ids", "context", "input"}) {
    CHECK_THROWS_WITH(read_dialogue("{" + answer + "}], \"" + key + "\": 0.5}", "f:1"),
                      Catch::Contains("f:1: '" + key + "' is not read: "));
  }
}

TEST_CASE("the parts of a content are joined, and reasoning is read", "[data][chat]") {
  const Dialogue parts = read_dialogue(
      R"({"messages": [
          {"role": "user", "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]},
          {"role": "assistant", "content": [], "reasoning_content": "c", "tool_calls": null}]})",
      "f:1");
  CHECK(parts[0].content == "a b");
  CHECK_FALSE(parts[0].reasoning);
  CHECK(parts[1].content.empty());
  CHECK(parts[1].reasoning == "c");
  for (const std::string key : {"thinking", "reasoning"}) {
    const std::string answer = R"({"messages": [{"role": "assistant", "content": "a", ")" + key;
    CHECK(read_dialogue(answer + R"(": "t"}]})", "f:1")[0].reasoning == "t");
  }
}

TEST_CASE("a question ends with a message of the user", "[data][chat]") {
  const Dialogue question = read_question(
      R"({"messages": [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]})",
      "f:1");
  CHECK((question.size() == 2 && question[1].content == "b"));
  CHECK(read_question(R"({"prompt": "a", "completion": "b"})", "f:1").size() == 1);
  CHECK_THROWS_WITH(read_question(R"({"text": "a"})", "f:2"), Catch::Contains("f:2: not a dialog"));
  for (const char* json :
       {R"({"messages": []})", R"({"messages": [{"role": "assistant", "content": "b"}]})"}) {
    CHECK_THROWS_WITH(read_question(json, "f:2"), Catch::Contains("f:2: the last message is not"));
  }
}

TEST_CASE("a record that is no dialogue is refused with file and line", "[data][chat]") {
  const std::pair<const char*, const char*> cases[] = {
      {"{", "f:7:1: not JSON"},
      {R"({"text": "a"})", "f:7: not a dialogue"},
      {R"({"messages": "a"})", "not a list but a string"},
      {R"({"messages": [{"role": "tool", "content": "a"}]})", "message 1: unknown role 'tool'"},
      {R"({"messages": [{"role": "user", "content": 1}]})", "'content' is missing or not a text"},
      {R"({"messages": [{"role": "user", "content": ["a"]}]})", "a part of its content is not"},
      {R"({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]})",
       "message 1: a part of its content is not {\"type\": \"text\", \"text\": ...} but "
       "{\"image_url\":{},\"type\":\"image_url\"}; pictures and sounds are not read"},
      {R"({"messages": [{"role": "assistant", "content": "a", "tool_calls": [{}]}]})",
       "'messages.tool_calls' is not read"},
      {R"({"messages": [{"role": "assistant", "content": "a", "reasoning_content": 1}]})",
       "'reasoning_content' is missing or not a text"},
      {R"({"messages": [{"role": "user", "content": "a"}]})", "no message of the assistant"},
      {R"({"messages": [{"role": "assistant", "content": "a", "weight": "0"}]})",
       "message 1: 'weight' is \"0\"; expected 0"},
      {R"({"prompt": "a"})", "not a dialogue"}};
  for (const auto& [json, message] : cases) {
    CHECK_THROWS_WITH(read_dialogue(json, "f:7"), Catch::Contains(message));
  }
}

TEST_CASE("JSON lines with dialogues are not taken for documents", "[data][chat]") {
  const auto dialogue = [](const char* json) { return is_dialogue(nlohmann::json::parse(json)); };
  CHECK(dialogue(R"({"id": 3, "messages": []})"));
  CHECK(dialogue(R"({"prompt": "a", "response": "b"})"));
  CHECK(dialogue(R"({"instruction": "a", "input": "", "output": "b"})"));
  CHECK(dialogue(R"({"question": "a", "answer": "b"})"));
  CHECK(dialogue(R"({"conversations": []})"));
  CHECK_FALSE(dialogue(R"({"text": "a \"messages\": ["})"));
  CHECK_FALSE(dialogue(R"({"a": {"messages": 1}, "b": "messages"})"));
  CHECK_FALSE(dialogue(R"({"messages": [], "text": "a"})"));
  CHECK_FALSE(dialogue(R"({"prompt": "a"})"));
}

}  // namespace
}  // namespace fp8train::test
