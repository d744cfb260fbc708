// What Hugging Face's tokenizers and sentencepiece make of some thirty texts, with a small
// tokenizer of each kind (tests/golden/make_tokenizers.py).

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/tokenizer.h"
#include "data/tokenizers/unicode.h"
#include "support/files.h"
#include "support/temp_dir.h"

namespace fp8train {
namespace {

namespace fs = std::filesystem;

const fs::path kTokenizers = fs::path(FP8TRAIN_GOLDEN_DIR) / "tokenizers";

std::vector<std::string> golden_texts() {
  const std::string bytes = test::read_file(kTokenizers / "texts.bin");
  std::vector<std::string> texts;
  for (size_t position = 0; position < bytes.size();) {
    uint32_t length = 0;
    std::memcpy(&length, bytes.data() + position, sizeof(length));
    texts.push_back(bytes.substr(position + sizeof(length), length));
    position += sizeof(length) + length;
  }
  return texts;
}

std::string base64_of(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t j = 0; j < 3; ++j) {
      bits = (bits << 8) | (i + j < bytes.size() ? static_cast<uint8_t>(bytes[i + j]) : 0U);
    }
    for (size_t j = 0; j < 4; ++j) {
      const bool padding = i + j > bytes.size();
      text += padding ? '=' : kDigits[(bits >> (18 - 6 * j)) & 63];
    }
  }
  return text;
}

TEST_CASE("ids and decoded texts are those of the libraries that made the tokenizers") {
  const std::vector<std::string> texts = golden_texts();
  REQUIRE(texts.size() > 20);
  for (const auto& entry : fs::directory_iterator(kTokenizers)) {
    if (!entry.is_directory()) continue;
    const auto expected = nlohmann::json::parse(test::read_file(entry.path() / "expected.json"));
    const auto tokenizer = open_tokenizer(entry.path());
    REQUIRE(expected.size() == texts.size());
    // of a model with a larger vocabulary
    const auto outside = static_cast<int32_t>(tokenizer->vocab_size());
    CHECK(tokenizer->decode(std::vector<int32_t>{outside, outside + 61}).empty());
    CHECK_THROWS_AS(tokenizer->decode(std::vector<int32_t>{-1}), DataError);
    for (size_t i = 0; i < texts.size(); ++i) {
      INFO(entry.path().filename().string() << " text " << i << ": " << texts[i]);
      const std::vector<int32_t> ids = tokenizer->encode(texts[i]);
      CHECK(ids == expected[i]["ids"].get<std::vector<int32_t>>());
      CHECK(tokenizers::well_formed(tokenizer->decode(ids)) == expected[i]["text"]);
    }
  }
}

TEST_CASE("ranks of tiktoken give the ids of the tokenizer.json with the same tokens") {
  const test::TempDir dir;
  // "ab" merges before "bc", and "abc" is a token that no merge of these leads to but "ab" + "c".
  std::string ranks;
  for (int byte = 0; byte < 256; ++byte) {
    ranks += base64_of(std::string(1, static_cast<char>(byte))) + " " + std::to_string(byte) + "\n";
  }
  ranks += base64_of("ab") + " 256\n" + base64_of("bc") + " 257\n" + base64_of("abc") + " 258\n" +
           base64_of(" a") + " 259\n";
  test::write_file(dir / "mine.tiktoken", ranks);
  const std::string path = (dir / "mine.tiktoken").string();
  const auto tokenizer = make_tokenizer(path + "#cl100k_base", {});
  CHECK(tokenizer->encode("abc bc abcb") == std::vector<int32_t>{258, ' ', 257, ' ', 258, 'b'});
  CHECK(tokenizer->decode(tokenizer->encode("caf\xC3\xA9 abc")) == "caf\xC3\xA9 abc");
  CHECK(tokenizer->eos_id() == 100257);
  CHECK(tokenizer_from_json(tokenizer->to_json(), "again")->encode("abcd") ==
        tokenizer->encode("abcd"));
  CHECK_THAT(test::message_of<DataError>([&] { make_tokenizer(path, {}); }),
             Catch::Contains("mine.tiktoken#PATTERN (expected r50k_base"));
  const std::string other = (kTokenizers / "gpt2" / "tokenizer.json").string();
  CHECK_THAT(test::message_of<DataError>([&] { make_tokenizer(other + "#qwen", {}); }),
             Catch::Contains("name it without '#qwen'"));
  test::write_file(dir / "bad.tiktoken", "YQ== 0\nY! 1\n");
  CHECK_THAT(test::message_of<DataError>(
                 [&] { make_tokenizer((dir / "bad.tiktoken").string() + "#qwen", {}); }),
             Catch::Contains("bad.tiktoken:2: not a token in base64"));
}

TEST_CASE("a text that is cut where a tokenizer allows it has the same ids") {
  std::string text;
  for (const std::string& part : golden_texts()) {
    text += part + " and then some words\nи слова\nещё одно слово й и\n\nдва\r\nтри е\u0301 а\n";
    text += "中文。\n我们 你们！\n好\n 山\u201D\n水 ﹰ و ﷺ ا\nが か\nか\u3099\n한국 말\n";
  }
  for (const char* name : {"gpt2", "llama3", "qwen2", "tekken", "metaspace-first", "unigram"}) {
    nlohmann::json file =
        nlohmann::json::parse(test::read_file(kTokenizers / name / "tokenizer.json"));
    auto& added = file["added_tokens"];
    added.erase(std::remove_if(added.begin(), added.end(),
                               [](const auto& token) { return token["lstrip"] == true; }),
                added.end());  // which takes spaces
    if (std::string(name) == "unigram") file["normalizer"] = {{"type", "NFKC"}};
    const auto tokenizer = tokenizer_from_json(file.dump(), name);
    const std::vector<int32_t> whole = tokenizer->encode(text);
    std::vector<int32_t> parts;
    std::string_view rest = text;
    int cuts = 0;
    while (!rest.empty()) {
      size_t cut = 0;
      for (size_t window = 100; cut == 0 && window < rest.size(); window += 100) {
        cut = tokenizer->last_cut(rest.substr(0, window));
      }
      cut = cut == 0 ? rest.size() : cut;
      const std::string_view part = rest.substr(0, cut);
      const auto ids = cuts++ == 0 ? tokenizer->encode(part) : tokenizer->encode_rest(part);
      parts.insert(parts.end(), ids.begin(), ids.end());
      rest.remove_prefix(cut);
    }
    INFO(name);
    CHECK(cuts > 10);
    CHECK(parts == whole);
  }
}

}  // namespace
}  // namespace fp8train
