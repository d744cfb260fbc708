#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

#include "base/error.h"
#include "data/tokenizer_detail.h"
#include "data/utf8.h"

namespace fp8train {
namespace {

constexpr int32_t kByteBos = 256;
constexpr int32_t kByteEos = 257;
constexpr int64_t kByteVocab = 258;

class ByteTokenizer final : public Tokenizer {
 public:
  std::string_view type() const override { return "byte"; }
  int64_t vocab_size() const override { return kByteVocab; }
  int32_t eos_id() const override { return kByteEos; }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    ids.reserve(text.size());
    for (const char c : text) {
      ids.push_back(static_cast<uint8_t>(c));
    }
    return ids;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    text.reserve(ids.size());
    for (const int32_t id : ids) {
      detail::require_id(id, kByteVocab);
      if (id < kByteBos) {
        text.push_back(static_cast<char>(id));
      }
    }
    return text;
  }

  std::string to_json() const override {
    const nlohmann::ordered_json document = {{"format", detail::kTokenizerFormat},
                                             {"version", detail::kTokenizerVersion},
                                             {"type", type()}};
    return document.dump(2) + "\n";
  }
};

class CharTokenizer final : public Tokenizer {
 public:
  explicit CharTokenizer(std::vector<std::string> characters) : characters_(std::move(characters)) {
    for (size_t i = 0; i < characters_.size(); ++i) {
      ids_.emplace(characters_[i], static_cast<int32_t>(i));
    }
  }

  std::string_view type() const override { return "char"; }
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
        throw DataError(
            fmt::format("the character '{}' ({}) at byte {} is not in the vocabulary of {} "
                        "characters; build the tokenizer from a text that holds it, or use the "
                        "byte tokenizer",
                        character, printable(character), position, characters_.size()));
      }
      ids.push_back(found->second);
      position += length;
    }
    return ids;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) {
      detail::require_id(id, vocab_size());
      text += characters_[static_cast<size_t>(id)];
    }
    return text;
  }

  std::string to_json() const override {
    const nlohmann::ordered_json document = {{"format", detail::kTokenizerFormat},
                                             {"version", detail::kTokenizerVersion},
                                             {"type", type()},
                                             {"characters", characters_}};
    return document.dump(2) + "\n";
  }

 private:
  std::vector<std::string> characters_;
  std::unordered_map<std::string, int32_t> ids_;
};

/// For data that was tokenized elsewhere: the text of a token is its id in decimal.
class IdTokenizer final : public Tokenizer {
 public:
  std::string_view type() const override { return "none"; }
  int64_t vocab_size() const override { return 0; }

  std::vector<int32_t> encode(std::string_view text) const override {
    constexpr std::string_view kBlank = " \t\r\n";
    std::vector<int32_t> ids;
    for (size_t begin = text.find_first_not_of(kBlank); begin != std::string_view::npos;) {
      const size_t end = std::min(text.find_first_of(kBlank, begin), text.size());
      int32_t id = -1;
      const auto [stop, error] = std::from_chars(text.data() + begin, text.data() + end, id);
      if (error != std::errc() || stop != text.data() + end || id < 0) {
        throw DataError(
            fmt::format("'{}' at byte {} of the text is not a token id; without a tokenizer a text "
                        "is ids with blanks between them (data.tokenizer: none)",
                        text.substr(begin, std::min<size_t>(end - begin, 20)), begin));
      }
      ids.push_back(id);
      begin = text.find_first_not_of(kBlank, end);
    }
    return ids;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    return fmt::format("{}", fmt::join(ids, " "));
  }

  std::string to_json() const override {
    const nlohmann::ordered_json document = {{"format", detail::kTokenizerFormat},
                                             {"version", detail::kTokenizerVersion},
                                             {"type", type()}};
    return document.dump(2) + "\n";
  }
};

}  // namespace

std::unique_ptr<Tokenizer> make_id_tokenizer() {
  return std::make_unique<IdTokenizer>();
}

std::unique_ptr<Tokenizer> make_byte_tokenizer() {
  return std::make_unique<ByteTokenizer>();
}

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
  return detail::char_tokenizer_from({characters.begin(), characters.end()}, "the training text");
}

namespace detail {

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

void require_id(int32_t id, int64_t vocab_size) {
  if (id < 0 || id >= vocab_size) {
    throw DataError(
        fmt::format("token id {} is outside the tokenizer's vocabulary of {}", id, vocab_size));
  }
}

}  // namespace detail
}  // namespace fp8train
