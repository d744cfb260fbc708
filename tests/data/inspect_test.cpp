// What is said of data files.

#include "data/inspect.h"

#include <catch2/catch.hpp>
#include <string>

#include "base/content_hash.h"
#include "base/error.h"
#include "data/choice_questions.h"
#include "support/files.h"
#include "support/temp_dir.h"
#include "support/token_shard.h"

namespace fp8train {
namespace {

using Catch::Contains;
using test::message_of;

const std::filesystem::path kInspected = std::filesystem::path(FP8TRAIN_GOLDEN_DIR) / "data";

TEST_CASE("token files say type, tokens, documents, range of ids and hash") {
  const DataFileFacts indexed = inspect_file(kInspected / "indexed_u16.bin", {});
  CHECK(indexed.format == "indexed");
  CHECK(indexed.type == "u16");
  CHECK(indexed.tokens == 250);
  CHECK(indexed.documents == 4);
  CHECK(indexed.min_id == 0);
  CHECK(indexed.max_id == 50210);  // the largest i * 7919 % 50257 below 250
  CHECK(indexed.bytes == std::filesystem::file_size(kInspected / "indexed_u16.bin"));
  CHECK(indexed.first_ids.size() == 24);
  CHECK(indexed.first_ids[1] == 7919);
  const std::string content = test::read_file(kInspected / "indexed_u16.bin");
  ContentHasher hasher;
  hasher.update(content.data(), content.size());
  CHECK(indexed.xxh3_128 == hasher.digest());

  const DataFileFacts array = inspect_file(kInspected / "i64.npy", {});
  CHECK(array.type == "i64");
  CHECK(array.tokens == 40);
  CHECK_FALSE(array.documents);
}

TEST_CASE("with a tokenizer samples are decoded and texts are encoded") {
  const test::TempDir dir;
  const auto tokenizer = make_byte_tokenizer();
  InspectSettings settings;
  settings.tokenizer = tokenizer.get();
  settings.sample_tokens = 5;
  test::write_shard(dir / "t.bin", std::vector<int32_t>{72, 105, 257, 33, 10, 257, 65}, 258);
  const DataFileFacts tokens = inspect_file(dir / "t.bin", settings);
  CHECK(tokens.documents == 2);  // ends of text
  CHECK(tokens.first_text == "Hi!\n");

  std::string lines;
  for (int i = 0; i < 3000; ++i) lines += R"({"text": "word )" + std::to_string(i % 7) + "\"}\n";
  test::write_file(dir / "t.jsonl", lines);
  const DataFileFacts text = inspect_file(dir / "t.jsonl", settings);
  CHECK(text.format == "jsonl");
  CHECK(text.documents == 3000);
  CHECK(text.text_bytes == 6 * 3000);
  CHECK(text.tokens == 7 * 3000);
  CHECK(text.max_id == 257);
  CHECK(text.first_ids.size() == 5);

  const std::string long_text(3'000'000, 'a');
  test::write_file(dir / "t.txt", long_text);
  settings.tokenizer = nullptr;
  const DataFileFacts plain = inspect_file(dir / "t.txt", settings);
  CHECK(plain.documents == 1);
  CHECK(plain.text_bytes == 3'000'000);
  CHECK_FALSE(plain.tokens);
  CHECK(plain.first_text == std::string(200, 'a'));

  const std::string dialogue = R"({"prompt": "ask", "completion": "answer"})";
  test::write_file(dir / "c.jsonl", dialogue + "\n" + dialogue + "\n");
  const DataFileFacts dialogues = inspect_file(dir / "c.jsonl", settings);
  CHECK(dialogues.documents == 2);
  CHECK(dialogues.text_bytes == 2 * 10);  // with the line feed between the messages
  CHECK(dialogues.first_text == "ask\nanswerask\nanswer");
}

TEST_CASE("questions are read, and what is wrong with one is said with its line") {
  const test::TempDir dir;
  const auto read = [&](const std::string& lines) {
    test::write_file(dir / "q.jsonl", lines);
    return read_choice_questions(dir / "q.jsonl");
  };
  const auto questions = read(R"({"context": "a", "choices": ["b", "c"], "gold": 1}

{"query": "d", "choices": ["e", "f", "g"], "label": "2", "more": 3}
)");
  REQUIRE(questions.size() == 2);
  CHECK(questions[0].context == "a");
  CHECK(questions[0].gold == 1);
  CHECK(questions[1].choices == std::vector<std::string>{"e", "f", "g"});
  CHECK(questions[1].gold == 2);
  const auto refusal = [&](const std::string& line) {
    return message_of<DataError>([&] { read("\n" + line + "\n"); });
  };
  CHECK_THAT(refusal("3"), Contains("q.jsonl:2: the line is not a JSON object but a number"));
  CHECK_THAT(refusal(R"({"choices": ["a", "b"]})"),
             Contains("no key 'context' (keys here: choices)"));
  CHECK_THAT(refusal(R"({"context": 3, "choices": ["a", "b"]})"), Contains("'context' is not a"));
  CHECK_THAT(refusal(R"({"context": "", "choices": ["a"], "gold": 0})"), Contains("two texts"));
  CHECK_THAT(refusal(R"({"context": "", "choices": ["a", "b"], "gold": 2})"),
             Contains("'gold' is 2; expected the number of a choice, 0 to 1"));
  CHECK_THAT(refusal(R"({"context": "", "choices": ["a", "b"], "gold": "x"})"),
             Contains("'gold' is \"x\""));
  CHECK_THAT(refusal("{"), Contains("q.jsonl:2:1: not JSON"));
  CHECK_THAT(message_of<DataError>([&] { read("\n"); }), Contains("holds no questions"));
}

}  // namespace
}  // namespace fp8train
