#include "data/tokenizers/own_format.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <unordered_map>

#include "base/error.h"
#include "base/text.h"
#include "data/tokenizers/byte_alphabet.h"
#include "data/utf8.h"

namespace fp8train {
namespace {

constexpr const char* kOwnFormat = "fp8train-tokenizer";
constexpr int kOwnVersion = 1;

/// For data that was tokenized elsewhere. The text of a token is its id in decimal.
class IdTokenizer final : public Tokenizer {
 public:
  TokenizerType type() const override { return TokenizerType::none; }
  int64_t vocab_size() const override { return 0; }

  std::vector<int32_t> encode(std::string_view text) const override {
    constexpr std::string_view kBlank = " \t\r\n";
    std::vector<int32_t> ids;
    for (size_t begin = text.find_first_not_of(kBlank); begin != std::string_view::npos;) {
      const size_t end = std::min(text.find_first_of(kBlank, begin), text.size());
      const std::optional<int32_t> id = whole_number<int32_t>(text.substr(begin, end - begin));
      if (!id) {
        throw DataError(
            fmt::format("'{}' at byte {} of the text is not a token id; without a tokenizer a text "
                        "is ids with blanks between them (data.tokenizer: none)",
                        text.substr(begin, std::min<size_t>(end - begin, 20)), begin));
      }
      ids.push_back(*id);
      begin = text.find_first_not_of(kBlank, end);
    }
    return ids;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    return fmt::format("{}", fmt::join(ids, " "));
  }

  std::string to_json() const override { return tokenizers::own_header(type()).dump(2) + "\n"; }
};

constexpr int32_t kByteBos = 256;
constexpr int32_t kByteEos = 257;
constexpr int64_t kByteVocab = 258;
constexpr const char* kReservedToken = "<|reserved|>";
constexpr const char* kEosToken = "<|endoftext|>";

class ByteTokenizer final : public Tokenizer {
 public:
  TokenizerType type() const override { return TokenizerType::byte; }
  int64_t vocab_size() const override { return kByteVocab; }
  int32_t eos_id() const override { return kByteEos; }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    ids.reserve(text.size());
    for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
    return ids;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    text.reserve(ids.size());
    for (const int32_t id : ids) {
      if (tokenizers::has_text(id, kByteBos)) text.push_back(static_cast<char>(id));
    }
    return text;
  }

  size_t last_cut(std::string_view text) const override { return text.size(); }

  /// A byte-level vocabulary without merges.
  std::string to_json() const override {
    nlohmann::ordered_json vocabulary = nlohmann::ordered_json::object();
    for (int32_t byte = 0; byte < kByteBos; ++byte) {
      vocabulary[tokenizers::spelled(std::string(1, static_cast<char>(byte)))] = byte;
    }
    const nlohmann::ordered_json level = {{"type", "ByteLevel"},
                                          {"add_prefix_space", false},
                                          {"trim_offsets", true},
                                          {"use_regex", false}};
    nlohmann::ordered_json document = tokenizers::transformers_document(std::move(vocabulary));
    document["added_tokens"] = {special(kByteBos, kReservedToken), special(kByteEos, kEosToken)};
    document["pre_tokenizer"] = level;
    document["decoder"] = level;
    return document.dump(2) + "\n";
  }

  std::vector<TokenizerFile> own_files() const override {
    return tokenizers::transformers_files(to_json(), "", kEosToken);
  }

 private:
  static nlohmann::ordered_json special(int32_t id, const char* content) {
    return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
            {"rstrip", false}, {"normalized", false}, {"special", true}};
  }
};

/// The tokenizer of code points.
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
      if (tokenizers::has_text(id, vocab_size())) text += characters_[static_cast<size_t>(id)];
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

/// Makes a char tokenizer from its characters, each one UTF-8 code point, in id order. Throws
/// DataError, which begins with `where`, for one that is something else, or appears twice.
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
    if (!characters.contains(character)) characters.emplace(character);
    position += length;
  }
  return char_tokenizer_from({characters.begin(), characters.end()}, "the training text");
}

namespace tokenizers {

nlohmann::ordered_json own_header(TokenizerType type) {
  return {{"format", kOwnFormat}, {"version", kOwnVersion}, {"type", name_of(type)}};
}

nlohmann::ordered_json transformers_document(nlohmann::ordered_json vocabulary) {
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", nlohmann::ordered_json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", nullptr},
          {"post_processor", nullptr},
          {"decoder", nullptr},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", std::move(vocabulary)},
            {"merges", nlohmann::ordered_json::array()}}}};
}

bool is_own(const nlohmann::json& document) {
  return document.is_object() && document.value("format", "") == kOwnFormat;
}

std::unique_ptr<Tokenizer> recognize_own(const nlohmann::json& document) {
  const auto is_file_of = [&](const Tokenizer& tokenizer) {
    return nlohmann::json::parse(tokenizer.to_json()) == document;
  };
  const nlohmann::json& model = document.at("model");
  if (!model.is_object() || !model.contains("vocab") || !model["vocab"].is_object() ||
      !model.contains("merges") || !model["merges"].empty()) {
    return nullptr;
  }
  if (auto bytes = make_byte_tokenizer(); is_file_of(*bytes)) return bytes;
  std::vector<std::string> characters(model["vocab"].size());
  for (const auto& [token, id] : model["vocab"].items()) {
    const bool has_index = id.is_number_unsigned() && id.get<uint64_t>() < characters.size() &&
                           code_point_length(token, 0) == token.size() && !token.empty();
    if (!has_index || !characters[id.get<size_t>()].empty()) return nullptr;
    characters[id.get<size_t>()] = token;
  }
  if (characters.empty()) return nullptr;
  auto chars = char_tokenizer_from(std::move(characters), "tokenizer.json");
  return is_file_of(*chars) ? std::move(chars) : nullptr;
}

std::unique_ptr<Tokenizer> read_own(const nlohmann::json& own, const std::string& where) {
  const int version = own.at("version").get<int>();
  if (version != kOwnVersion) {
    throw DataError(fmt::format("{}: tokenizer format version {}; this program reads version {}",
                                where, version, kOwnVersion));
  }
  const auto name = own.at("type").get<std::string>();
  const std::optional<TokenizerType> type = value_in(kTokenizerTypes, name);
  if (type == TokenizerType::none) return make_id_tokenizer();
  if (type == TokenizerType::byte) return make_byte_tokenizer();
  if (type == TokenizerType::character) {
    return char_tokenizer_from(own.at("characters").get<std::vector<std::string>>(), where);
  }
  throw DataError(
      fmt::format("{}: unknown tokenizer type '{}' (expected none, byte or char); export the model "
                  "with the version of the program that wrote it",
                  where, name));
}

std::vector<TokenizerFile> transformers_files(std::string tokenizer_json, const std::string& bos,
                                              const std::string& eos) {
  nlohmann::ordered_json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                   {"clean_up_tokenization_spaces", false}};
  if (!bos.empty()) config["bos_token"] = bos;
  if (!eos.empty()) config["eos_token"] = eos;
  return {{"tokenizer.json", std::move(tokenizer_json)},
          {"tokenizer_config.json", config.dump(2) + "\n"}};
}

bool has_text(int32_t id, int64_t vocab_size) {
  if (id < 0) {
    throw DataError(fmt::format("a token id is {}", id));
  }
  return id < vocab_size;
}

}  // namespace tokenizers
}  // namespace fp8train
