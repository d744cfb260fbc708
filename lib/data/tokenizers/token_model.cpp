#include "data/tokenizers/token_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "base/error.h"
#include "data/tokenizers/text_matcher.h"
#include "data/utf8.h"

namespace fp8train::tokenizers {
namespace {

/// The tables of a WordPiece or WordLevel model.
struct WordVocabulary {
  std::vector<std::string> tokens;  ///< by id
  std::string unknown;              ///< the token of words that cannot be written
  std::string continuing_prefix;    ///< in front of tokens within a word
  int64_t most_characters = 0;      ///< longer words are unknown
  bool whole_words = false;         ///< WordLevel: a word is a token or unknown
};

constexpr char kWordBegin = '\xFF';  // no byte of UTF-8

/// All tokens may begin a word; those with the prefix may follow another one.
TextMatcher reversed_tokens(const std::vector<std::string>& tokens, const std::string& prefix,
                            const std::string& where) {
  std::vector<TextMatcher::Entry> entries;
  for (size_t id = 0; id < tokens.size(); ++id) {
    const std::string& token = tokens[id];
    if (token.empty()) continue;
    const std::string reversed(token.rbegin(), token.rend());
    entries.emplace_back(reversed + kWordBegin, static_cast<int32_t>(id));
    if (token.starts_with(prefix)) {
      entries.emplace_back(reversed.substr(0, token.size() - prefix.size()),
                           static_cast<int32_t>(id));
    }
  }
  return {entries, where};
}

/// The models WordPiece and WordLevel (huggingface/tokenizers, src/models). Encoding takes time in
/// proportion to the word, however long its tokens are, and some nine bytes of memory for each of
/// its bytes.
class WordModel final : public TokenModel {
 public:
  /// Throws DataError, which begins with `where`, if the vocabulary does not have the unknown
  /// token, and as TextMatcher does.
  WordModel(WordVocabulary vocabulary, const std::string& where);

  std::unique_ptr<Scratch> make_scratch() const override;
  void encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const override;

 private:
  class Memory;
  bool append_parts(std::string_view word, Memory& memory, std::vector<int32_t>& ids) const;

  std::unordered_map<std::string_view, int32_t> ids_;
  int64_t most_characters_;
  std::optional<TextMatcher> reversed_;  ///< tokens from their last byte on; none for whole words
  int32_t unknown_;
};

class WordModel::Memory final : public TokenModel::Scratch {
 public:
  std::vector<TextMatcher::Match> longest;  ///< token that begins at each byte of the word
};

WordModel::WordModel(WordVocabulary vocabulary, const std::string& where)
    : TokenModel(std::move(vocabulary.tokens)),
      ids_(ids_of(tokens())),
      most_characters_(vocabulary.most_characters),
      unknown_(unknown_id(ids_, vocabulary.unknown, where)) {
  if (!vocabulary.whole_words) {
    reversed_.emplace(reversed_tokens(tokens(), vocabulary.continuing_prefix, where));
  }
}

std::unique_ptr<TokenModel::Scratch> WordModel::make_scratch() const {
  return std::make_unique<Memory>();
}

bool WordModel::append_parts(std::string_view word, Memory& memory,
                             std::vector<int32_t>& ids) const {
  auto& longest = memory.longest;
  longest.resize(word.size());
  int32_t state = TextMatcher::kStart;
  for (size_t at = word.size(); at-- > 0;) {
    state = reversed_->next(state, word[at]);
    longest[at] = reversed_->longest(state);
  }
  longest[0] = reversed_->longest(reversed_->next(state, kWordBegin));
  for (size_t begin = 0; begin < word.size(); begin += longest[begin].length) {
    if (longest[begin].value < 0) return false;
    if (begin == 0) longest[0].length -= 1;  // without kWordBegin
    ids.push_back(longest[begin].value);
  }
  return true;
}

void WordModel::encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const {
  if (!reversed_) {
    const auto found = ids_.find(piece);
    ids.push_back(found == ids_.end() ? unknown_ : found->second);
    return;
  }
  const size_t before = ids.size();
  const auto characters =
      std::count_if(piece.begin(), piece.end(), [](char c) { return !is_continuation(c); });
  if (characters > most_characters_ || !append_parts(piece, static_cast<Memory&>(scratch), ids)) {
    ids.resize(before);
    ids.push_back(unknown_);
  }
}

/// {"token": id, ...} by id.
std::vector<std::string> read_vocabulary(const JsonPart& part) {
  const JsonPart vocabulary = part.at("vocab");
  if (!vocabulary.value().is_object() || vocabulary.value().empty()) {
    vocabulary.refuse("is not a table of tokens and their ids");
  }
  std::vector<std::string> tokens;
  for (const auto& [token, id] : vocabulary.value().items()) {
    const int64_t number = id.is_number_integer() ? id.get<int64_t>() : -1;
    if (number < 0 || token.empty()) {
      vocabulary.refuse(fmt::format("token '{}' has no id of 0 or above", printable(token)));
    }
    require_dense(vocabulary, number, vocabulary.size());
    const auto at = static_cast<size_t>(number);
    if (at >= tokens.size()) tokens.resize(at + 1);
    if (!tokens[at].empty()) {
      vocabulary.refuse(fmt::format("tokens '{}' and '{}' have the same id {}",
                                    printable(tokens[at]), printable(token), at));
    }
    tokens[at] = token;
  }
  return tokens;
}

/// "a b" or ["a", "b"].
std::pair<std::string, std::string> read_merge(const JsonPart& part) {
  const nlohmann::json& value = part.value();
  if (value.is_array() && value.size() == 2 && value[0].is_string() && value[1].is_string()) {
    return {value[0].get<std::string>(), value[1].get<std::string>()};
  }
  if (value.is_string()) {
    const auto text = value.get<std::string>();
    const size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
      return {text.substr(0, space), text.substr(space + 1)};
    }
  }
  part.refuse("a merge is \"a b\" or [\"a\", \"b\"]");
}

std::unique_ptr<TokenModel> read_bpe(const JsonPart& part, bool byte_level) {
  part.only({"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
             "byte_fallback", "ignore_merges", "vocab", "merges"});
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!part.text_or(name, "").empty()) part.at(name).refuse("is not supported");
  }
  if (part.has("dropout") && part.at("dropout").value() != 0) {
    part.at("dropout").refuse("merges are not dropped at random here; set it to null");
  }
  BpeVocabulary vocabulary;
  vocabulary.tokens = read_vocabulary(part);
  const JsonPart merges = part.at("merges");
  if (!merges.value().is_array()) merges.refuse("is not a list");
  vocabulary.merges.reserve(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    vocabulary.merges.push_back(read_merge(merges.at(i)));
  }
  vocabulary.unknown = part.text_or("unk_token", "");
  vocabulary.byte_level = byte_level;
  vocabulary.byte_fallback = part.flag_or("byte_fallback", false);
  vocabulary.fuse_unknown = part.flag_or("fuse_unk", false);
  vocabulary.ignore_merges = part.flag_or("ignore_merges", false);
  return make_bpe_model(std::move(vocabulary), part.where());
}

std::unique_ptr<TokenModel> read_unigram(const JsonPart& part, bool byte_level) {
  part.only({"unk_id", "vocab", "byte_fallback"});
  if (byte_level) part.refuse("a Unigram model behind ByteLevel is not supported");
  const JsonPart list = part.at("vocab");
  if (!list.value().is_array() || list.value().empty()) {
    list.refuse("is not a list of tokens and their scores");
  }
  UnigramVocabulary vocabulary;
  for (const nlohmann::json& entry : list.value()) {
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number()) {
      list.refuse(fmt::format("token {} is not [text, score]", vocabulary.tokens.size()));
    }
    vocabulary.tokens.push_back(entry[0].get<std::string>());
    vocabulary.scores.push_back(entry[1].get<double>());
  }
  vocabulary.unknown = part.has("unk_id") ? part.number("unk_id") : -1;
  vocabulary.byte_fallback = part.flag_or("byte_fallback", false);
  return make_unigram_model(std::move(vocabulary), part.where());
}

std::unique_ptr<TokenModel> read_words(const JsonPart& part, bool byte_level) {
  part.only({"unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"});
  if (byte_level) part.refuse("a model of words behind ByteLevel is not supported");
  WordVocabulary vocabulary;
  vocabulary.tokens = read_vocabulary(part);
  vocabulary.whole_words = part.type() == "WordLevel";
  vocabulary.unknown = part.text_or("unk_token", "[UNK]");
  vocabulary.continuing_prefix = part.text_or("continuing_subword_prefix", "##");
  vocabulary.most_characters =
      part.has("max_input_chars_per_word") ? part.number("max_input_chars_per_word") : 100;
  return std::make_unique<WordModel>(std::move(vocabulary), part.where());
}

}  // namespace

std::unordered_map<std::string_view, int32_t> ids_of(const std::vector<std::string>& tokens) {
  std::unordered_map<std::string_view, int32_t> ids;
  ids.reserve(tokens.size());
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (!tokens[id].empty()) ids.emplace(tokens[id], static_cast<int32_t>(id));
  }
  return ids;
}

int32_t unknown_id(const std::unordered_map<std::string_view, int32_t>& ids,
                   const std::string& unknown, const std::string& where) {
  const auto found = ids.find(unknown);
  if (found != ids.end()) return found->second;
  throw DataError(
      fmt::format("{}: unk_token '{}' is not in the vocabulary", where, printable(unknown)));
}

std::unique_ptr<TokenModel> read_token_model(const JsonPart& part, bool byte_level) {
  // Files of before tokenizers 0.9 do not name the type of BPE.
  const std::string type = part.text_or("type", part.has("merges") ? "BPE" : "");
  if (type == "BPE") return read_bpe(part, byte_level);
  if (type == "Unigram") return read_unigram(part, byte_level);
  if (type == "WordPiece" || type == "WordLevel") return read_words(part, byte_level);
  refuse_type(part, "models", "BPE, Unigram, WordPiece, WordLevel");
}

}  // namespace fp8train::tokenizers
