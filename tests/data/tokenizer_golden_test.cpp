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

namespace fp8train {
namespace {

namespace fs = std::filesystem;

const fs::path kFolder = fs::path(FP8TRAIN_GOLDEN_DIR) / "tokenizers";

std::vector<std::string> golden_texts() {
  const std::string bytes = test::read_file(kFolder / "texts.bin");
  std::vector<std::string> texts;
  for (size_t position = 0; position < bytes.size();) {
    uint32_t length = 0;
    std::memcpy(&length, bytes.data() + position, sizeof(length));
    texts.push_back(bytes.substr(position + sizeof(length), length));
    position += sizeof(length) + length;
  }
  return texts;
}

TEST_CASE("ids and decoded texts are those of the libraries that made the tokenizers") {
  const std::vector<std::string> texts = golden_texts();
  REQUIRE(texts.size() > 20);
  int folders = 0;
  for (const auto& entry : fs::directory_iterator(kFolder)) {
    if (!entry.is_directory()) continue;
    ++folders;
    const auto expected = nlohmann::json::parse(test::read_file(entry.path() / "expected.json"));
    const auto tokenizer = open_tokenizer(entry.path());
    REQUIRE(expected.size() == texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      INFO(entry.path().filename().string() << " text " << i << ": " << texts[i]);
      const std::vector<int32_t> ids = tokenizer->encode(texts[i]);
      CHECK(ids == expected[i]["ids"].get<std::vector<int32_t>>());
      CHECK(tokenizers::well_formed(tokenizer->decode(ids)) == expected[i]["text"]);
    }
  }
  CHECK(folders == 14);
}

TEST_CASE("a text that is cut where a tokenizer allows it has the same ids") {
  std::string text;
  for (const std::string& part : golden_texts()) text += part + " and then some words\n";
  for (const char* name : {"gpt2", "llama3", "qwen2", "tekken", "metaspace-first", "unigram"}) {
    nlohmann::json file = nlohmann::json::parse(test::read_file(kFolder / name / "tokenizer.json"));
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
