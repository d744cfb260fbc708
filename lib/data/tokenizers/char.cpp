// The tokenizer of code points.

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

#include "base/error.h"
#include "data/tokenizers/own_format.h"
#include "data/utf8.h"

namespace fp8train {
namespace {

class CharTokenizer final : public Tokenizer {
 public:
  explicit CharTokenizer(std::vector<std::string> characters) : characters_(std::move(characters)) {
    for (size_t i = 0; i < characters_.size(); ++i) {
      ids_.emplace(characters_[i], static_cast<int32_t>(i));
    }
  }

  TokenizerType type() const override { return TokenizerType::character; }
  int64_t vocab_size() const override { return static_cast<int64_t>(characters_.size()); }
  TextUnit unit() const override { return TextUnit::code_point; }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    ids.reserve(text.size());
    std::string character;
    for (size_t position = 0; position < text.size();) {
      const size_t length = code_point_length(text, position);
      if (length == 0) {
        throw DataError(
            fmt::format("byte {} of the text is not UTF-8; the char tokenizer needs "
                        "UTF-8, the byte tokenizer takes anything",
                        position));
      }
      character.assign(text.substr(position, length));
      const auto found = ids_.find(character);
      if (found == ids_.end()) {
        const std::string bytes = printable(character);
        throw DataError(fmt::format(
            "the character '{}'{} at byte {} is not one of the {} that this tokenizer was "
            "made from; leave it out, or use the byte tokenizer, which takes any text",
            character, bytes == character ? "" : " (" + bytes + ")", position, characters_.size()));
      }
      ids.push_back(found->second);
      position += length;
    }
    return ids;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) {
      tokenizers::require_id(id, vocab_size());
      text += characters_[static_cast<size_t>(id)];
    }
    return text;
  }

  size_t last_cut(std::string_view text) const override {
    size_t end = text.size();
    while (end > 0 && text.size() - end < 4 && is_continuation(text[end - 1])) --end;
    return end > 0 ? end - 1 : 0;
  }

  /// A vocabulary of characters without merges.
  std::string to_json() const override {
    nlohmann::ordered_json vocabulary = nlohmann::ordered_json::object();
    for (size_t id = 0; id < characters_.size(); ++id) vocabulary[characters_[id]] = id;
    nlohmann::ordered_json document = tokenizers::transformers_document(std::move(vocabulary));
    document["decoder"] = {{"type", "Fuse"}};
    return document.dump(2) + "\n";
  }

  std::vector<TokenizerFile> own_files() const override {
    return tokenizers::transformers_files(to_json(), "", "");
  }

 private:
  std::vector<std::string> characters_;
  std::unordered_map<std::string, int32_t> ids_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_char_tokenizer(std::string_view training_text) {
  // The byte order of UTF-8 is code point order.
  std::set<std::string, std::less<>> characters;
  for (size_t position = 0; position < training_text.size();) {
    const size_t length = code_point_length(training_text, position);
    if (length == 0) {
      throw DataError(fmt::format(
          "byte {} of the training text is not UTF-8; use the byte tokenizer for such data",
          position));
    }
    const std::string_view character = training_text.substr(position, length);
    if (!characters.contains(character)) {
      characters.emplace(character);
    }
    position += length;
  }
  return tokenizers::char_tokenizer_from({characters.begin(), characters.end()},
                                         "the training text");
}

namespace tokenizers {

std::unique_ptr<Tokenizer> char_tokenizer_from(std::vector<std::string> characters,
                                               const std::string& where) {
  if (characters.empty()) {
    throw DataError(fmt::format(
        "{}: holds no characters, so there is nothing to make a vocabulary from", where));
  }
  std::set<std::string> seen;
  for (size_t i = 0; i < characters.size(); ++i) {
    const std::string& character = characters[i];
    if (character.empty() || code_point_length(character, 0) != character.size()) {
      throw DataError(fmt::format("{}: character {} ('{}') is not one UTF-8 code point", where, i,
                                  printable(character)));
    }
    if (!seen.insert(character).second) {
      throw DataError(fmt::format("{}: character '{}' appears twice", where, printable(character)));
    }
  }
  return std::make_unique<CharTokenizer>(std::move(characters));
}

}  // namespace tokenizers
}  // namespace fp8train
