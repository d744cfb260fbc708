#include "data/chat/dialogue_encoder.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"

namespace fp8train::test {
namespace {

Dialogue turns(size_t i) {
  const std::string text(500 + i * 37 % 911, static_cast<char>('a' + i % 26));
  return {{ChatRole::user, text, false}, {ChatRole::assistant, text + "!", true}};
}

TEST_CASE("dialogues are encoded on several threads, in order", "[data][chat]") {
  constexpr size_t kDialogues = 2000;  // some eight tasks
  const auto tokenizer =
      open_tokenizer(std::filesystem::path(FP8TRAIN_GOLDEN_DIR) / "chat" / "llama2");
  const ChatEncoder encoder(*tokenizer, "llama2");
  for (const int64_t threads : {1, 3}) {
    std::vector<ChatEncoder::Encoded> encoded;
    for_each_encoded_dialogue(
        *tokenizer, "llama2", "", threads,
        [&](const DialogueVisitor& visit) {
          for (size_t i = 0; i < kDialogues; ++i) visit(turns(i), "f");
        },
        [&](ChatEncoder::Encoded dialogue) { encoded.push_back(std::move(dialogue)); });
    REQUIRE(encoded.size() == kDialogues);
    for (size_t i = 0; i < kDialogues; i += 17) {
      const ChatEncoder::Encoded expected = encoder.encode(turns(i));
      CHECK(encoded[i].ids == expected.ids);
      CHECK(encoded[i].is_target == expected.is_target);
    }
  }
}

TEST_CASE("an error of a thread names file and line", "[data][chat]") {
  const auto tokenizer =
      open_tokenizer(std::filesystem::path(FP8TRAIN_GOLDEN_DIR) / "chat" / "llama2");
  const auto read = [](const DialogueVisitor& visit) {
    visit(turns(1), "f:1");
    visit({{ChatRole::assistant, "a", true}}, "f:2");
  };
  CHECK_THROWS_WITH(
      for_each_encoded_dialogue(*tokenizer, "llama2", "", 2, read,
                                [](const ChatEncoder::Encoded&) {}),
      Catch::StartsWith("f:2: the chat template refuses the dialogue: it takes user and"));
}

}  // namespace
}  // namespace fp8train::test
