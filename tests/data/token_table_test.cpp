// Vocabularies as lists. Lists of BPE files are compared with llama.cpp's package in
// tests/io/export_files_test.cpp.

#include "data/tokenizers/token_table.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "support/files.h"

namespace fp8train {
namespace {

using Catch::Contains;
using test::message_of;

TokenTable table_of(const std::string& name) {
  return token_table(
      *open_tokenizer(std::filesystem::path(FP8TRAIN_GOLDEN_DIR) / "tokenizers" / name));
}

TEST_CASE("a model of sentencepiece has its pieces, scores and kinds") {
  const TokenTable table = table_of("sentencepiece-bpe");
  CHECK(table.kind == TokenTableKind::scored);
  CHECK(table.tokens.size() == table.types.size());
  CHECK(table.tokens.size() == table.scores.size());
  CHECK(table.adds_space);
  CHECK(table.types.at(static_cast<size_t>(table.unknown)) == TokenType::unknown);
  const auto of_type = [&](TokenType type) {
    return std::count(table.types.begin(), table.types.end(), type);
  };
  CHECK(of_type(TokenType::byte) == 256);
  CHECK(of_type(TokenType::control) >= 2);
  // The first merge has the best score, and each one a worse one than the one before.
  const auto best = std::find(table.scores.begin(), table.scores.end(), -1.0F);
  REQUIRE(best != table.scores.end());
  CHECK(table.types.at(static_cast<size_t>(best - table.scores.begin())) == TokenType::normal);
}

TEST_CASE("user-defined pieces of sentencepiece are texts with spaces") {
  const TokenTable table = table_of("sentencepiece-user");
  std::vector<std::string> found;
  for (size_t id = 0; id < table.tokens.size(); ++id) {
    if (table.types[id] == TokenType::user_defined) found.push_back(table.tokens[id]);
  }
  CHECK(found == std::vector<std::string>{"[mark]", "    ", "HTTP"});
}

TEST_CASE("what llama.cpp does otherwise than the tokenizer is noted") {
  using Texts = std::vector<std::string>;
  CHECK(table_of("trained").differences.empty());
  const std::string flags = "does not know 'lstrip', 'rstrip' and 'single_word' of added tokens";
  CHECK(table_of("llama3").differences == Texts{flags});
  CHECK(table_of("gpt2-prefix").differences ==
        Texts{flags, "puts no space in front of a text for byte-level BPE"});
  CHECK(table_of("qwen2").differences == Texts{flags, "does not normalize texts (NFC)"});
  CHECK(table_of("sentencepiece-bpe").differences ==
        Texts{"leaves several spaces in a row, and spaces at the ends"});
  CHECK(table_of("sentencepiece-user").differences ==
        Texts{"puts a space behind user-defined pieces, and none in front of one"});
}

TEST_CASE("texts that are split in the same way have the same name") {
  CHECK(table_of("gpt2").pre == "gpt-2");
  CHECK(table_of("llama3").pre == "llama-bpe");
  CHECK(table_of("trained").pre == "dbrx");  // split like Llama 3's, but every merge is made
  CHECK(table_of("qwen2").pre == "qwen2");
  CHECK(table_of("tekken").pre == "tekken");
  CHECK(table_of("gpt2-prefix").adds_space);
}

TEST_CASE("bytes are a vocabulary without merges") {
  const TokenTable table = token_table(*make_byte_tokenizer());
  CHECK(table.tokens.size() == 258);
  CHECK(table.merges.empty());
  CHECK(table.tokens.at('A') == "A");
  CHECK(table.tokens.at(' ') == "\xC4\xA0");
  CHECK(table.types.at(257) == TokenType::control);
}

TEST_CASE("every kind of tokenizer is a list of tokens, or is known not to be one") {
  const std::set<std::string> refused = {
      "metaspace-always", "metaspace-first", "mixed",    "sentencepiece-unigram",
      "unigram",          "wordlevel",       "wordpiece"};
  size_t seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator(
           std::filesystem::path(FP8TRAIN_GOLDEN_DIR) / "tokenizers")) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_directory()) continue;
    CAPTURE(name);
    if (!refused.contains(name)) {
      CHECK_NOTHROW(table_of(name));
      continue;
    }
    ++seen;
    CHECK_THAT(message_of<DataError>([&] { table_of(name); }),
               Contains("cannot be written as lists of tokens"));
  }
  CHECK(seen == refused.size());
  CHECK_THAT(message_of<DataError>([] { token_table(*make_char_tokenizer("abc")); }),
             Contains("a tokenizer of characters cannot be written"));
  CHECK_THROWS_AS(token_table(*make_id_tokenizer()), DataError);
}

}  // namespace
}  // namespace fp8train
