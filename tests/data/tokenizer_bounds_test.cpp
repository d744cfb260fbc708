// Texts and vocabularies that take the plain algorithms of tokenizers hours: the ids are those of
// the plain algorithms, and what has no bound is refused.

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/text_source.h"
#include "data/tokenizer.h"
#include "support/files.h"
#include "support/temp_dir.h"

namespace fp8train {
namespace {

using Catch::Contains;
using Json = nlohmann::json;
using test::message_of;
using Ids = std::vector<int32_t>;

std::unique_ptr<Tokenizer> tokenizer_with(const Json& model, Json more = Json::object()) {
  more["model"] = model;
  return tokenizer_from_json(more.dump(), "t.json");
}

std::string repeated(const std::string& text, size_t times) {
  std::string result;
  for (size_t i = 0; i < times; ++i) result += text;
  return result;
}

/// Words over few letters, so that many begin and end alike.
class RandomWords {
 public:
  std::string word(size_t longest) {
    std::string text;
    for (size_t length = 1 + random_() % longest; length > 0; --length) {
      text += letters_[random_() % letters_.size()];
    }
    return text;
  }
  uint32_t number(uint32_t below) { return static_cast<uint32_t>(random_()) % below; }

 private:
  std::mt19937 random_{5};
  std::vector<std::string> letters_ = {"a", "b", "\xC3\xA4"};
};

constexpr int32_t kUnknown = 0;

/// The longest token first, as huggingface/tokenizers writes it (src/models/wordpiece/mod.rs).
Ids plain_word_piece(const std::map<std::string, int32_t>& vocabulary, const std::string& word) {
  Ids ids;
  for (size_t begin = 0; begin < word.size();) {
    size_t end = word.size();
    for (; end > begin; --end) {
      const auto found = vocabulary.find((begin > 0 ? "##" : "") + word.substr(begin, end - begin));
      if (found == vocabulary.end()) continue;
      ids.push_back(found->second);
      break;
    }
    if (end == begin) return {kUnknown};
    begin = end;
  }
  return ids;
}

/// Of all ways the one of the highest sum, each beginning after the one before it.
double best_sum(const std::vector<std::pair<std::string, double>>& tokens,
                const std::string& text) {
  std::vector<double> best(text.size() + 1, -1e300);
  best[0] = 0;
  for (size_t begin = 0; begin < text.size(); ++begin) {
    for (const auto& [token, score] : tokens) {
      const size_t end = begin + token.size();
      if (best[begin] > -1e299 && text.compare(begin, token.size(), token) == 0) {
        best[end] = std::max(best[end], best[begin] + score);
      }
    }
  }
  return best.back();
}

}  // namespace

TEST_CASE("WordPiece takes the longest tokens, of words of any length") {
  RandomWords random;
  for (int round = 0; round < 200; ++round) {
    std::map<std::string, int32_t> vocabulary = {{"[UNK]", kUnknown}};
    for (int i = 0; i < 12; ++i) {
      const std::string token = (random.number(2) > 0 ? "##" : "") + random.word(6);
      vocabulary.emplace(token, static_cast<int32_t>(vocabulary.size()));
    }
    const auto tokenizer = tokenizer_with({{"type", "WordPiece"}, {"vocab", vocabulary}});
    for (int i = 0; i < 20; ++i) {
      const std::string word = random.word(14);
      INFO(word << " " << Json(vocabulary).dump());
      CHECK(tokenizer->encode(word) == plain_word_piece(vocabulary, word));
    }
  }
  const Json vocabulary = {
      {"[UNK]", 0}, {"a", 1}, {"##a", 2}, {"##b", 3}, {"##" + repeated("a", 99999) + "c", 4}};
  const auto tokenizer = tokenizer_with({{"type", "WordPiece"},
                                         {"max_input_chars_per_word", int64_t{1} << 60},
                                         {"vocab", vocabulary}});
  Ids expected(300000, 2);
  expected.front() = 1;
  CHECK(tokenizer->encode(repeated("a", 300000)) == expected);
  CHECK(tokenizer->encode(repeated("a", 300000) + "d") == Ids{0});
}

TEST_CASE("Unigram finds the best way with tokens of any length") {
  RandomWords random;
  for (int round = 0; round < 200; ++round) {
    std::vector<std::pair<std::string, double>> tokens = {
        {"?", -50.0}, {"a", -3.0}, {"b", -3.5}, {"\xC3\xA4", -4.0}};
    for (int i = 0; i < 12; ++i) {
      const std::string token = random.word(6);
      const bool is_there = std::any_of(tokens.begin(), tokens.end(),
                                        [&](const auto& known) { return known.first == token; });
      if (!is_there) tokens.emplace_back(token, -0.25 * random.number(64));
    }
    const auto tokenizer = tokenizer_with({{"type", "Unigram"}, {"unk_id", 0}, {"vocab", tokens}});
    for (int i = 0; i < 20; ++i) {
      const std::string text = random.word(14);
      std::string joined;
      double sum = 0;
      for (const int32_t id : tokenizer->encode(text)) {
        joined += tokens[static_cast<size_t>(id)].first;
        sum += tokens[static_cast<size_t>(id)].second;
      }
      INFO(text << " " << Json(tokens).dump());
      CHECK(joined == text);
      CHECK(sum == best_sum(tokens, text));
    }
  }
  const std::vector<std::pair<std::string, double>> vocabulary = {
      {"?", -9.0},
      {"a", -1.0},
      {repeated("a", 2000), -2.0},
      {repeated("a", 1999) + "b", -3.0},
      {repeated("a", 100000) + "c", -4.0}};
  const auto tokenizer =
      tokenizer_with({{"type", "Unigram"}, {"unk_id", 0}, {"vocab", vocabulary}});
  CHECK(tokenizer->encode(repeated("a", 200000)) == Ids(100, 2));
}

TEST_CASE("of added tokens the first and longest is found, however many there are") {
  const Json model = {{"type", "WordLevel"}, {"unk_token", "?"}, {"vocab", {{"?", 0}}}};
  RandomWords random;
  for (int round = 0; round < 100; ++round) {
    Json added = Json::array();
    std::vector<std::string> texts;
    for (int i = 0; i < 8; ++i) {
      texts.push_back(random.word(5));
      added.push_back({{"id", i + 1}, {"content", texts.back()}});
    }
    const auto tokenizer = tokenizer_with(model, {{"added_tokens", added}});
    for (int i = 0; i < 20; ++i) {
      const std::string text = random.word(14);
      Ids expected;
      bool is_between = false;
      for (size_t at = 0; at < text.size();) {
        const std::string* longest = nullptr;
        for (const std::string& token : texts) {
          const bool is_here = text.compare(at, token.size(), token) == 0;
          if (is_here && (longest == nullptr || token.size() > longest->size())) longest = &token;
        }
        if (longest != nullptr) {
          const auto first = std::find(texts.begin(), texts.end(), *longest) - texts.begin();
          expected.push_back(static_cast<int32_t>(first) + 1);
        } else if (!is_between) {
          expected.push_back(0);
        }
        is_between = longest == nullptr;
        at += longest == nullptr ? 1 : longest->size();
      }
      INFO(text << " " << added.dump());
      CHECK(tokenizer->encode(text) == expected);
    }
  }
  Json many = Json::array();
  for (int i = 1; i <= 2000; ++i) many.push_back({{"id", i}, {"content", repeated("<", i) + "x"}});
  const auto tokenizer = tokenizer_with(model, {{"added_tokens", many}});
  CHECK(tokenizer->encode(repeated("<", 300000)) == Ids{0});
}

TEST_CASE("a tokenizer's file cannot ask for all memory or time") {
  const Json model = {{"type", "WordLevel"}, {"unk_token", "?"}, {"vocab", {{"?", 0}}}};
  const Json doubles = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}};
  const Json lists = {{"type", "Sequence"}, {"normalizers", Json::array()}};
  Json normalizer = lists;
  for (int i = 0; i < 40; ++i) normalizer["normalizers"].push_back(doubles);
  const auto tokenizer = tokenizer_with(model, {{"normalizer", normalizer}});
  CHECK(tokenizer->encode("b") == Ids{0});
  CHECK_THAT(message_of<DataError>([&] { tokenizer->encode("a"); }),
             Contains("t.json.normalizer") && Contains("longer than 65600 bytes"));
  for (int i = 0; i < 300; ++i) normalizer["normalizers"].push_back({{"type", "NFC"}});
  CHECK_THAT(message_of<DataError>([&] {
               tokenizer_with(model, {{"normalizer", normalizer}});
             }),
             Contains("normalizers[256]: more than 256 normalizers"));
  const Json prefix = {{"type", "Prepend"}, {"prepend", repeated("a", 70000)}};
  CHECK_THAT(message_of<DataError>([&] {
               tokenizer_with(model, {{"normalizer", prefix}})->encode("a");
             }),
             Contains("longer than 65600 bytes"));
  Json stages = {{"type", "Sequence"}, {"pretokenizers", Json::array()}};
  for (int i = 0; i < 65; ++i) stages["pretokenizers"].push_back({{"type", "Whitespace"}});
  CHECK_THAT(message_of<DataError>([&] {
               tokenizer_with(model, {{"pre_tokenizer", stages}});
             }),
             Contains("more than 64 pre-tokenizers"));
  const Json far = Json::array({{{"id", 10000000}, {"content", "x"}}});
  CHECK_THAT(message_of<DataError>([&] {
               tokenizer_with(model, {{"added_tokens", far}});
             }),
             Contains("added_tokens[0]: id 10000000 is not between 0 and 1048577"));
  CHECK_THAT(message_of<DataError>([&] {
               tokenizer_with({{"type", "WordLevel"}, {"vocab", {{"[UNK]", 1 << 21}}}});
             }),
             Contains("id 2097152 is not between"));
  const Json long_token = {{"?", 0}, {repeated("a", (1 << 24) + 1), 1}};
  CHECK_THAT(message_of<DataError>([&] {
               tokenizer_with({{"type", "WordPiece"}, {"unk_token", "?"}, {"vocab", long_token}});
             }),
             Contains("at most 16777216 are read"));
  const test::TempDir folder;
  test::write_file(folder / "cl100k_base.tiktoken", "QQ== 0\n" + repeated("QUFB", 342) + " 1\n");
  CHECK_THAT(message_of<DataError>([&] { open_tokenizer(folder / "cl100k_base.tiktoken"); }),
             Contains("cl100k_base.tiktoken:2: a token of 1026 bytes"));
}

TEST_CASE("texts that are held in memory are counted against it") {
  TextBudget budget(1000);
  budget.add(600, "a.txt");
  budget.add(400, "b.txt");
  CHECK_THAT(message_of<DataError>([&] { budget.add(1, "c.txt"); }),
             Contains("c.txt: the text is held in memory") && Contains("fp8train data prepare"));
  constexpr uint64_t kGibibyte = 1ULL << 30;
  TextBudget compressed(100 * kGibibyte);
  compressed.add(kGibibyte, "a.gz", 1000);  // short texts may repeat a word
  CHECK_NOTHROW(compressed.add(1, "a.gz", kGibibyte / 100));
  CHECK_THAT(message_of<DataError>([&] { compressed.add(1, "a.gz", kGibibyte / 300); }),
             Contains("a.gz: the file holds more than 200 times its length") &&
                 Contains("fp8train data prepare"));
}

}  // namespace fp8train
